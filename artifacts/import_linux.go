package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

// HostImage is the name of the image that SnapshotHost makes. Host policy
// speaks of images by name, so nobody may import one under it.
const HostImage = "host"

const (
	maxLabel     = 64
	progressStep = 64 << 20
)

// ImportImage unpacks a tar of a root file system, plain or gzip, and stores
// it under name. It reads tar to its end or to the first error, in the
// caller's goroutine: tar's Read must return once ctx is done. When it gives
// nothing for Config.IdleTimeout the import ends and holds nothing any more,
// but ImportImage returns only when Read does. progress may be nil; it is
// called in another goroutine, not after the return. Nothing is left on error.
func (s *Store) ImportImage(ctx context.Context, name string, tar io.Reader, progress func(string)) (ImageInfo, error) {
	if err := checkImageName(name); err != nil {
		return ImageInfo{}, err
	}
	return relay(ctx, s.cfg.IdleTimeout, tar, func(tar io.Reader) (ImageInfo, error) {
		return s.importTar(ctx, name, tar, speaker(progress))
	})
}

func (s *Store) importTar(ctx context.Context, name string, tar io.Reader, say func(string, ...any)) (info ImageInfo, err error) {
	select {
	case s.imports <- struct{}{}:
		defer func() { <-s.imports }()
	case <-ctx.Done():
		return ImageInfo{}, ctx.Err()
	}
	release, err := s.reserveImage()
	if err != nil {
		return ImageInfo{}, err
	}
	defer release()
	st, err := s.newStaging(s.workerOwner())
	if err != nil {
		return ImageInfo{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(st.dir)) }()
	if err := s.unpackInto(ctx, st.rootfs, tar, say); err != nil {
		return ImageInfo{}, err
	}
	say("checking the tree")
	return s.finish(ctx, st, name, "import")
}

func checkImageName(name string) error {
	ok := name != "" && len(name) <= maxLabel && name[0] != '.' && name[0] != '-'
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
	}
	if !ok {
		return fault.New(fault.InvalidArgument, "name", fmt.Sprintf("%.100q is not an image name", name),
			"use up to 64 of a-z 0-9 . _ - and begin with a letter or a digit")
	}
	if name == HostImage {
		return fault.New(fault.InvalidArgument, "name", "host names the snapshot of this host", "choose another name")
	}
	return nil
}

// unpackInto streams tar to a worker. Not a byte of it is looked at.
func (s *Store) unpackInto(ctx context.Context, rootfs string, tar io.Reader, say func(string, ...any)) error {
	w, err := s.startWorker(ctx, rootfs)
	if err != nil {
		return err
	}
	feedErr := s.feed(ctx, w.stdin, tar, say)
	if feedErr != nil {
		w.kill() // what it makes of half an archive is of no use
	}
	rep, err := w.wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case feedErr != nil:
		return feedErr
	case err != nil:
		return err
	}
	st := rep.Stripped
	say("unpacked %d entries, dropped %d special mode bits, %d extended attributes, %d device nodes",
		rep.Entries, st.SpecialBits, st.Xattrs, st.Devices)
	return nil
}

// feed copies tar to the worker. A worker that stopped reading has its say in
// wait, so that is no error here.
func (s *Store) feed(ctx context.Context, w io.Writer, tar io.Reader, say func(string, ...any)) error {
	lim := s.cfg.limits()
	most := lim.Bytes + lim.Files*unpack.HeaderAllowance
	buf := make([]byte, 256<<10)
	var total, said int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, rerr := tar.Read(buf)
		total += int64(n)
		if total > most {
			return tooLarge(fmt.Sprintf("archive is longer than %d bytes", most))
		}
		if _, err := w.Write(buf[:n]); errors.Is(err, unix.EPIPE) {
			return nil
		} else if err != nil {
			return fmt.Errorf("feed unpack worker: %w", err)
		}
		if total-said >= progressStep {
			said = total
			say("received %d MiB", total>>20)
		}
		if errors.Is(rerr, io.EOF) {
			return nil
		}
		if rerr != nil {
			return fmt.Errorf("read archive: %w", rerr)
		}
	}
}

// speaker makes progress safe to call when nobody listens.
func speaker(progress func(string)) func(string, ...any) {
	return func(format string, args ...any) {
		if progress != nil {
			progress(fmt.Sprintf(format, args...))
		}
	}
}
