package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/internal/fault"
	"cordon/supervisor/hostpolicy"
)

// PutInput stores one input file of the caller's tenant.
func (h *handlers) PutInput(stream grpc.ClientStreamingServer[cordonv1.PutInputRequest, cordonv1.PutInputResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return early(err, "header")
	}
	header := first.GetHeader()
	if header == nil {
		return violation("header", "must be the first message")
	}
	// The store knows nothing of callers, so this is where it is decided.
	named := func(t hostpolicy.Tenant) bool { return t.Name == header.GetTenant() }
	if !slices.ContainsFunc(callOf(ctx).tenants, named) {
		return fault.New(fault.PermissionDenied, "header.tenant", fmt.Sprintf("this user may not speak for tenant %.80q", header.GetTenant()),
			"name one of the tenants that cordon doctor lists")
	}
	size := header.GetSize()
	if size < 0 {
		return fault.New(fault.InvalidArgument, "header.size", "is negative", "say how many bytes will come")
	}
	if size > h.cfg.Limits.InputBytes {
		return tooLarge("header.size", h.cfg.Limits.InputBytes)
	}
	up := &upload{
		field: "header.size", size: size, limit: size,
		recv: func() ([]byte, error) { return data(stream.Recv()) },
	}
	digest, err := h.cfg.Images.PutInput(ctx, header.GetTenant(), up, size, header.GetDigest())
	if err := up.finish(err); err != nil {
		return err
	}
	return stream.SendAndClose(&cordonv1.PutInputResponse{Digest: digest, Size: size})
}

// ImportImage unpacks a root file system tar into the image store.
func (h *handlers) ImportImage(stream grpc.ClientStreamingServer[cordonv1.ImportImageRequest, cordonv1.ImportImageResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return early(err, "header")
	}
	header := first.GetHeader()
	if header == nil {
		return violation("header", "must be the first message")
	}
	// Images are shared by all tenants of the host.
	mayImport := func(t hostpolicy.Tenant) bool { return t.ImportImages }
	if !slices.ContainsFunc(callOf(stream.Context()).tenants, mayImport) {
		return fault.New(fault.PermissionDenied, "image", "this user speaks for no tenant that may import images",
			"have the operator set import_images in "+hostpolicy.Path)
	}
	up := &upload{
		field: "data", size: -1, limit: h.cfg.Limits.ImageBytes,
		recv: func() ([]byte, error) { return data(stream.Recv()) },
	}
	img, err := h.cfg.Images.ImportImage(stream.Context(), header.GetName(), up)
	if err := up.finish(err); err != nil {
		return err
	}
	return stream.SendAndClose(&cordonv1.ImportImageResponse{Image: image(img)})
}

// data is the data of an upload's message.
func data[M interface{ GetData() []byte }](m M, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	b := m.GetData()
	switch {
	case b == nil: // a header, or nothing at all
		return nil, violation("data", "must be in every message but the first")
	case len(b) > wire.MaxChunkBytes:
		return nil, bigChunk("data", len(b))
	}
	return b, nil
}

// upload is the data of a stream as a reader. Its goroutine is the handler's:
// nothing is received ahead of need, so a slow reader slows the caller.
type upload struct {
	recv  func() ([]byte, error)
	field string
	size  int64 // that must come, or -1
	limit int64

	rest []byte
	got  int64
	err  error // sticky; io.EOF after a complete upload
}

// Read returns the next bytes, io.EOF at a good end, and a *fault.Fault or a
// status at a bad one.
func (u *upload) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		if u.err != nil {
			return 0, u.err
		}
		u.rest, u.err = u.next()
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func (u *upload) next() ([]byte, error) {
	b, err := u.recv()
	if errors.Is(err, io.EOF) && u.size >= 0 && u.got < u.size {
		return nil, fault.New(fault.InvalidArgument, u.field, fmt.Sprintf("announced %d bytes, and %d came", u.size, u.got),
			"send all of it before closing the stream")
	}
	if err != nil {
		return nil, err
	}
	if u.got += int64(len(b)); u.got > u.limit {
		if u.size >= 0 {
			return nil, fault.New(fault.InvalidArgument, u.field, fmt.Sprintf("announced %d bytes, and more came", u.size),
				"announce the true size")
		}
		return nil, tooLarge(u.field, u.limit)
	}
	return b, nil
}

// finish returns why the upload failed. The stream's own trouble comes first,
// because whatever the reader of it says is a consequence.
func (u *upload) finish(err error) error {
	if u.err != nil && !errors.Is(u.err, io.EOF) {
		return u.err
	}
	if err != nil {
		return err
	}
	// A reader that stopped at the announced size has not seen the end.
	if _, err := u.Read(make([]byte, 1)); err == nil {
		return violation("data", "goes on after the end of the file")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// SnapshotHost makes an image of the host's packages.
func (h *handlers) SnapshotHost(_ *cordonv1.SnapshotHostRequest, stream grpc.ServerStreamingServer[cordonv1.SnapshotHostResponse]) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	img, err := h.cfg.Images.SnapshotHost(ctx, func(text string) {
		resp := &cordonv1.SnapshotHostResponse{Kind: &cordonv1.SnapshotHostResponse_Progress{Progress: clip(text)}}
		if err := stream.Send(resp); err != nil {
			cancel(err) // nobody listens
		}
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause // the caller has left; err is a consequence
	}
	if err != nil {
		return err
	}
	return stream.Send(&cordonv1.SnapshotHostResponse{Kind: &cordonv1.SnapshotHostResponse_Image{Image: image(img)}})
}

// ListImages lists the image store.
func (h *handlers) ListImages(ctx context.Context, _ *cordonv1.ListImagesRequest) (*cordonv1.ListImagesResponse, error) {
	images, err := h.cfg.Images.Images(ctx)
	if err != nil {
		return nil, err
	}
	resp := &cordonv1.ListImagesResponse{}
	for _, i := range images {
		resp.Images = append(resp.Images, image(i))
	}
	return resp, nil
}

func image(i Image) *cordonv1.Image {
	return &cordonv1.Image{
		Digest: i.Digest, Name: i.Name, Bytes: i.Bytes, Files: i.Files,
		CreatedAt: wire.Time(i.Created),
	}
}

func tooLarge(field string, limit int64) error {
	return fault.New(fault.TooLarge, field, fmt.Sprintf("is more than %d bytes", limit), "send less, or have the operator raise the limit")
}

func bigChunk(field string, n int) error {
	return violation(field, fmt.Sprintf("is %d bytes in one message, and %d is the most", n, wire.MaxChunkBytes))
}

// violation is a message that the protocol does not allow where it came.
func violation(field, cause string) error {
	return fault.New(fault.InvalidArgument, field, cause, "keep to the order and sizes that supervisor.proto describes")
}

// early is the error of a stream that ended before its first message.
func early(err error, want string) error {
	if errors.Is(err, io.EOF) {
		return violation(want, "must be the first message, and none came")
	}
	return err
}
