package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cordonv1 "cordon/api/v1"
	"cordon/supervisor"
)

// exporter is a supervisor that writes to an export until that fails, and
// says so in its own words.
type exporter struct{ Service }

func (exporter) Export(_ context.Context, _ supervisor.Caller, _ supervisor.Ref, path string, begin func(int64) (io.Writer, error)) (supervisor.Exported, error) {
	w, err := begin(1 << 40)
	for err == nil {
		_, err = w.Write(make([]byte, 64<<10))
	}
	return supervisor.Exported{}, fmt.Errorf("export %s: %w", path, err)
}

// leftStream is a stream whose caller leaves after some messages. Its context
// has not ended yet: grpc marks a stream as done before it ends that.
type leftStream struct {
	grpc.ServerStreamingServer[cordonv1.ExportResponse]

	ctx  context.Context
	left int
}

func (s *leftStream) Context() context.Context { return s.ctx }

func (s *leftStream) Send(*cordonv1.ExportResponse) error {
	if s.left == 0 {
		return status.Error(codes.Unavailable, "transport is closing")
	}
	s.left--
	return nil
}

// That a caller has left is no error of the daemon's.
func TestLeavingExportIsNoInternalError(t *testing.T) {
	h := &handlers{cfg: Config{Supervisor: exporter{}}}
	for _, left := range []int{0, 1, 5} {
		var log bytes.Buffer
		err := h.Export(&cordonv1.ExportRequest{Path: "x"}, &leftStream{ctx: t.Context(), left: left})
		err = errStatus(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), err)
		if status.Code(err) != codes.Unavailable || log.Len() > 0 {
			t.Errorf("left after %d messages: %v, logged %q; want grpc's own status and no line", left, err, log.String())
		}
	}
}
