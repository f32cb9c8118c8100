package unpack

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"syscall"

	"cordon/internal/fault"
)

// HeaderAllowance is what one entry may take of the stream beside its
// content: its header, a name or attribute header, and padding.
const HeaderAllowance = 4 << 10

// openTar looks at the first bytes of r and returns the plain tar stream,
// bounded so that no compression ratio goes past lim.
func openTar(r io.Reader, lim Limits) (*tarStream, error) {
	in := bufio.NewReaderSize(r, 256<<10)
	head, err := in.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read archive: %w", err)
	}
	for _, f := range []struct{ magic, name, remedy string }{
		{"\x28\xb5\x2f\xfd", "zstd", "pipe it through zstd -dc"},
		{"\xfd7zXZ\x00", "xz", "pipe it through xz -dc"},
		{"BZh", "bzip2", "pipe it through bzip2 -dc"},
		{"PK\x03\x04", "zip", "make a tar of the tree"},
	} {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return nil, fault.New(fault.InvalidArgument, "tar",
				f.name+" archives are not read, only plain and gzip tar", f.remedy)
		}
	}
	most := lim.Bytes + lim.Files*HeaderAllowance
	if !bytes.HasPrefix(head, []byte("\x1f\x8b")) {
		return &tarStream{r: in, left: most}, nil
	}
	gz, err := gzip.NewReader(in)
	if err != nil {
		return nil, badArchive(err)
	}
	return &tarStream{r: gz, left: most}, nil
}

// tarStream fails with too_large past its limit, where io.LimitedReader would
// pretend the stream ended, and knows whether the end was a tar's.
type tarStream struct {
	r     io.Reader
	left  int64
	zeros int64 // zero bytes at the end of what was read so far
}

func (s *tarStream) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, fault.New(fault.TooLarge, "tar", "unpacked stream is longer than the limit",
			"import a smaller tree or raise the host's image limit")
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.left -= int64(n)
	tail := int64(n - len(bytes.TrimRight(p[:n], "\x00")))
	if tail == int64(n) {
		tail += s.zeros
	}
	s.zeros = tail
	return n, err
}

// finish reads what follows the last entry. Tar ends in two blocks of zeros
// and pads with more: fewer and the archive was cut short between entries,
// which archive/tar takes for an end; anything else is content that this
// reader and another might disagree on. It also makes gzip check its sum.
func (s *tarStream) finish() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := s.Read(buf)
		if len(bytes.Trim(buf[:n], "\x00")) != 0 {
			return fault.New(fault.HostileImage, "tar", "data follows the archive's end",
				"build the archive again in one piece")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return badArchive(err)
		}
	}
	if s.zeros < 2*512 {
		return badArchive(io.ErrUnexpectedEOF)
	}
	return nil
}

// badArchive is a stream that is no archive, unless err already says better.
func badArchive(err error) error {
	if _, ok := errors.AsType[*fault.Fault](err); ok {
		return err
	}
	return fault.Wrap(err, fault.InvalidArgument, "tar", "not a readable tar archive",
		"give a complete tar of a root file system, plain or gzip")
}

// writeFault classifies an error of the staging file system.
func writeFault(op, name string, err error) error {
	var f *fault.Fault
	switch {
	case errors.As(err, &f):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.Wrap(err, fault.DiskFull, "image store", "no space left while unpacking",
			"free space under the state directory")
	case errors.Is(err, syscall.EFBIG):
		return fault.Wrap(err, fault.TooLarge, "tar", "entry "+quote(name)+" is larger than the limit",
			"import a smaller tree or raise the host's image limit")
	}
	return fmt.Errorf("%s %s: %w", op, quote(name), err)
}
