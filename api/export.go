package api

import (
	"io"
	"slices"

	"google.golang.org/grpc"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// Export streams one declared artifact: header, data, trailer.
func (h *handlers) Export(req *cordonv1.ExportRequest, stream grpc.ServerStreamingServer[cordonv1.ExportResponse]) error {
	ctx := stream.Context()
	w := &exportWriter{stream: stream}
	begin := func(size int64) (io.Writer, error) {
		header := &cordonv1.ExportHeader{Path: req.GetPath(), Size: size}
		return w, w.reply(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Header{Header: header}})
	}
	got, err := h.cfg.Supervisor.Export(ctx, callerOf(ctx), leaseRef(ctx, req.GetRef()), req.GetPath(), begin)
	if w.err != nil {
		return w.err // the caller has left; what the supervisor says is a consequence
	}
	if err != nil {
		return err
	}
	trailer := &cordonv1.ExportTrailer{Sha256: got.Digest, Size: got.Size}
	return stream.Send(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Trailer{Trailer: trailer}})
}

// exportWriter sends what is written as data, at the pace of the caller.
type exportWriter struct {
	stream grpc.ServerStreamingServer[cordonv1.ExportResponse]
	err    error // of the first Send that failed
}

func (w *exportWriter) reply(m *cordonv1.ExportResponse) error {
	if w.err == nil {
		w.err = w.stream.Send(m)
	}
	return w.err
}

// Write sends p in chunks. grpc has a copy of it when Send returns.
func (w *exportWriter) Write(p []byte) (int, error) {
	sent := 0
	for b := range slices.Chunk(p, wire.ChunkBytes) {
		if err := w.reply(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Data{Data: b}}); err != nil {
			return sent, err
		}
		sent += len(b)
	}
	return sent, nil
}
