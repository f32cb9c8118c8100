package artifacts

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"

	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

// copyBytes is a message of the API with its framing, below 32 KiB.
const copyBytes = 32<<10 - 512

// CopyArtifact copies the artifact f, whole and from its start, to w, and
// returns its size and digest. f must be a regular file of no more than most bytes
// that does not change meanwhile; what was written to w before an error is
// not an artifact. It borrows f.
//
// A second hard link is no reason to refuse: the volume is a file system of
// its own, so it can only be to another file of the run.
func CopyArtifact(ctx context.Context, f *os.File, most int64, w io.Writer) (size int64, digest string, err error) {
	var before, after unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &before); err != nil {
		return 0, "", os.NewSyscallError("fstat", err)
	}
	switch {
	case before.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, "", fault.New(fault.NotRegular, "path", "artifact is not a regular file", "declare a file")
	case before.Nlink == 0:
		return 0, "", fault.New(fault.NotRegular, "path", "artifact has been removed", "keep the file until the run ends")
	case before.Size > most:
		return 0, "", fault.New(fault.TooLarge, "path",
			fmt.Sprintf("artifact of %d bytes is above the limit of %d", before.Size, most), "export a smaller file")
	}
	h := sha256.New()
	in := io.NewSectionReader(f, 0, before.Size)
	n, err := io.CopyBuffer(io.MultiWriter(h, w), ctxReader{ctx, in}, make([]byte, copyBytes))
	if err != nil {
		return n, "", fmt.Errorf("copy artifact: %w", err)
	}
	if err := unix.Fstat(int(f.Fd()), &after); err != nil {
		return n, "", os.NewSyscallError("fstat", err)
	}
	var one [1]byte
	extra, _ := f.ReadAt(one[:], n)
	if n != before.Size || extra != 0 || after.Size != before.Size || after.Mtim != before.Mtim || after.Ctim != before.Ctim {
		return n, "", fault.New(fault.WrongState, "path",
			fmt.Sprintf("artifact changed while it was copied (%d bytes, %d before, %d after)", n, before.Size, after.Size),
			"export once the run is frozen or has ended")
	}
	return n, formatDigest(h.Sum(nil)), nil
}
