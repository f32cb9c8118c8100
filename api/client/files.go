package client

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// Input is a stored input file.
type Input struct {
	Digest string `json:"digest"` // what envelopes name it by
	Size   int64  `json:"size"`
}

// PutInput stores size bytes of r as an input of the tenant. The caller opens
// the file, with its own rights. With a digest ("sha256:" and 64 hex digits)
// the daemon refuses any other content; "" takes what comes.
func (c *Client) PutInput(ctx context.Context, tenant string, r io.Reader, size int64, digest string) (Input, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.PutInput(ctx)
	if err != nil {
		return Input{}, answer(err)
	}
	header := &cordonv1.PutInputHeader{Tenant: tenant, Size: size, Digest: digest}
	err = stream.Send(&cordonv1.PutInputRequest{Kind: &cordonv1.PutInputRequest_Header{Header: header}})
	if err == nil {
		err = upload(r, func(b []byte) error {
			return stream.Send(&cordonv1.PutInputRequest{Kind: &cordonv1.PutInputRequest_Data{Data: b}})
		})
	}
	resp, err := closeUpload(err, cancel, stream.CloseAndRecv)
	if err != nil {
		return Input{}, err
	}
	return Input{Digest: resp.GetDigest(), Size: resp.GetSize()}, nil
}

// Image is a root file system in the daemon's store.
type Image struct {
	Digest    string    `json:"digest"` // what envelopes name it by
	Name      string    `json:"name"`
	Bytes     int64     `json:"bytes"`
	Files     int64     `json:"files"`
	CreatedAt time.Time `json:"created_at"`
}

// ImportImage makes an image out of a root file system tar. Only root may.
func (c *Client) ImportImage(ctx context.Context, name string, tar io.Reader) (Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.ImportImage(ctx)
	if err != nil {
		return Image{}, answer(err)
	}
	header := &cordonv1.ImportImageHeader{Name: name}
	err = stream.Send(&cordonv1.ImportImageRequest{Kind: &cordonv1.ImportImageRequest_Header{Header: header}})
	if err == nil {
		err = upload(tar, func(b []byte) error {
			return stream.Send(&cordonv1.ImportImageRequest{Kind: &cordonv1.ImportImageRequest_Data{Data: b}})
		})
	}
	resp, err := closeUpload(err, cancel, stream.CloseAndRecv)
	if err != nil {
		return Image{}, err
	}
	return image(resp.GetImage()), nil
}

// readError is an error of the caller's reader, as opposed to the daemon's.
type readError struct{ err error }

func (e readError) Error() string { return e.err.Error() }

// upload sends r in chunks. io.EOF means that the daemon has answered early;
// its reason comes with the reply.
func upload(r io.Reader, send func([]byte) error) error {
	buf := make([]byte, wire.ChunkBytes)
	for {
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return readError{err}
		}
	}
}

// closeUpload ends an upload and returns the daemon's answer. One whose
// reader failed is cancelled, so that no half file is ever taken for whole.
func closeUpload[T any](err error, cancel func(), finish func() (T, error)) (T, error) {
	var none T
	if read, ok := errors.AsType[readError](err); ok {
		cancel()
		_, _ = finish() // only to let the stream go
		return none, fmt.Errorf("read upload: %w", read.err)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return none, answer(err)
	}
	resp, err := finish()
	if err != nil {
		return none, answer(err)
	}
	return resp, nil
}

// SnapshotHost makes the image "host" out of the host's own packages, or
// returns the one there is. progress, if not nil, is told what goes on. Only
// root may.
func (c *Client) SnapshotHost(ctx context.Context, progress func(string)) (Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.SnapshotHost(ctx, &cordonv1.SnapshotHostRequest{})
	if err != nil {
		return Image{}, answer(err)
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return Image{}, ended(err, "the image")
		}
		switch kind := resp.GetKind().(type) {
		case *cordonv1.SnapshotHostResponse_Progress:
			if progress != nil {
				progress(kind.Progress)
			}
		case *cordonv1.SnapshotHostResponse_Image:
			return image(kind.Image), nil
		}
	}
}

// Images lists the images of the store.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	resp, err := c.rpc.ListImages(ctx, &cordonv1.ListImagesRequest{})
	if err != nil {
		return nil, answer(err)
	}
	var out []Image
	for _, m := range resp.GetImages() {
		out = append(out, image(m))
	}
	return out, nil
}

func image(m *cordonv1.Image) Image {
	return Image{
		Digest: m.GetDigest(), Name: m.GetName(), Bytes: m.GetBytes(), Files: m.GetFiles(),
		CreatedAt: wire.TimeOf(m.GetCreatedAt()),
	}
}

// Export writes a declared artifact to w and returns its digest and size, as
// computed here from what was written. If they are not what the daemon says,
// that is an error, and what w got is not to be used.
func (l *Lease) Export(ctx context.Context, path string, w io.Writer) (digest string, size int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.c.rpc.Export(ctx, &cordonv1.ExportRequest{Ref: l.ref(), Path: path})
	if err != nil {
		return "", 0, answer(err)
	}
	in := download{path: path, w: w, sum: sha256.New()}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return "", 0, ended(err, "the trailer")
		}
		done, err := in.take(resp)
		if err != nil {
			return "", 0, err
		}
		if done {
			return in.digest(), in.size, nil
		}
	}
}

// download is the state of one Export.
type download struct {
	path   string
	w      io.Writer
	sum    hash.Hash
	header *cordonv1.ExportHeader
	size   int64
}

func (d *download) digest() string { return "sha256:" + hex.EncodeToString(d.sum.Sum(nil)) }

func (d *download) take(resp *cordonv1.ExportResponse) (done bool, err error) {
	switch kind := resp.GetKind().(type) {
	case *cordonv1.ExportResponse_Header:
		if d.header != nil {
			return false, broken("a second header")
		}
		d.header = kind.Header
		return false, nil
	case *cordonv1.ExportResponse_Data:
		if d.header == nil {
			return false, broken("data before the header")
		}
		d.sum.Write(kind.Data) // a hash never fails
		d.size += int64(len(kind.Data))
		if _, err := d.w.Write(kind.Data); err != nil {
			return false, fmt.Errorf("write artifact %s: %w", d.path, err)
		}
		return false, nil
	case *cordonv1.ExportResponse_Trailer:
		return true, d.verify(kind.Trailer)
	default:
		return false, broken("an export message of no known kind")
	}
}

func (d *download) verify(t *cordonv1.ExportTrailer) error {
	if d.header == nil || d.size != d.header.GetSize() || d.size != t.GetSize() || d.digest() != t.GetSha256() {
		return &Error{
			Code: DigestMismatch, Field: d.path,
			Cause: fmt.Sprintf("received %d bytes with digest %s, but the daemon sent %d with %s",
				d.size, d.digest(), t.GetSize(), t.GetSha256()),
			Remedy: "discard what was written, and export again",
		}
	}
	return nil
}
