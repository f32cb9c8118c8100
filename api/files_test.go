package api_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"cordon/api"
	"cordon/api/apitest"
	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/internal/fault"
	"cordon/supervisor/hostpolicy"
)

func inputHeader(tenant string, size int64) *cordonv1.PutInputRequest {
	return &cordonv1.PutInputRequest{Kind: &cordonv1.PutInputRequest_Header{
		Header: &cordonv1.PutInputHeader{Tenant: tenant, Size: size},
	}}
}

func inputData(s string) *cordonv1.PutInputRequest {
	return &cordonv1.PutInputRequest{Kind: &cordonv1.PutInputRequest_Data{Data: []byte(s)}}
}

// lazy is a store that stops reading at the announced size.
type lazy struct{ *apitest.Store }

func (l lazy) PutInput(ctx context.Context, tenant string, r io.Reader, size int64, digest string) (string, error) {
	return l.Store.PutInput(ctx, tenant, io.LimitReader(r, size), size, digest)
}

func TestPutInputProtocol(t *testing.T) {
	tests := []struct {
		name  string
		in    []*cordonv1.PutInputRequest
		code  codes.Code
		field string
	}{
		{"nothing", nil, codes.InvalidArgument, "header"},
		{"data first", []*cordonv1.PutInputRequest{inputData("x")}, codes.InvalidArgument, "header"},
		{"another's tenant", []*cordonv1.PutInputRequest{inputHeader("other", 1), inputData("x")}, codes.PermissionDenied, "header.tenant"},
		{"no tenant", []*cordonv1.PutInputRequest{inputHeader("", 1), inputData("x")}, codes.PermissionDenied, "header.tenant"},
		{"negative", []*cordonv1.PutInputRequest{inputHeader("acme", -1)}, codes.InvalidArgument, "header.size"},
		{"too large", []*cordonv1.PutInputRequest{inputHeader("acme", 101)}, codes.ResourceExhausted, "header.size"},
		{"second header", []*cordonv1.PutInputRequest{inputHeader("acme", 1), inputHeader("acme", 1)}, codes.InvalidArgument, "data"},
		{"no kind", []*cordonv1.PutInputRequest{inputHeader("acme", 1), {}}, codes.InvalidArgument, "data"},
		{"less than announced", []*cordonv1.PutInputRequest{inputHeader("acme", 2), inputData("x")}, codes.InvalidArgument, "header.size"},
		{"more than announced", []*cordonv1.PutInputRequest{inputHeader("acme", 2), inputData("xyz")}, codes.InvalidArgument, "header.size"},
		{"more in a second message", []*cordonv1.PutInputRequest{inputHeader("acme", 2), inputData("xy"), inputData("z")}, codes.InvalidArgument, "header.size"},
		{
			"chunk too large",
			[]*cordonv1.PutInputRequest{inputHeader("acme", 2), inputData(strings.Repeat("x", wire.MaxChunkBytes+1))},
			codes.InvalidArgument, "data",
		},
		{"in order", []*cordonv1.PutInputRequest{inputHeader("acme", 3), inputData("x"), inputData(""), inputData("yz")}, codes.OK, ""},
		{"empty file", []*cordonv1.PutInputRequest{inputHeader("acme", 0)}, codes.OK, ""},
	}
	for _, store := range []string{"reads to the end", "reads to the size"} {
		images := apitest.NewStore()
		c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
			cfg.Limits = api.Limits{InputBytes: 100}
			cfg.Images = images
			if store == "reads to the size" {
				cfg.Images = lazy{images}
			}
		}))
		for _, tt := range tests {
			t.Run(store+"/"+tt.name, func(t *testing.T) {
				stream, err := c.PutInput(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var want strings.Builder
				for _, m := range tt.in {
					want.Write(m.GetData())
					if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
						t.Fatal(err)
					}
				}
				resp, err := stream.CloseAndRecv()
				if tt.code != codes.OK {
					wantError(t, err, tt.code, tt.field)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := string(images.Input("acme", resp.GetDigest())); got != want.String() || resp.GetSize() != int64(len(got)) {
					t.Errorf("stored %q (%v), want %q", got, resp, want.String())
				}
			})
		}
	}
}

func TestImportImage(t *testing.T) {
	mayImport := true
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
		cfg.Limits = api.Limits{ImageBytes: 5}
		cfg.Tenants = func(hostpolicy.Peer) []hostpolicy.Tenant {
			return []hostpolicy.Tenant{{Name: "acme", ImportImages: mayImport}}
		}
	}))
	send := func(chunks ...string) (*cordonv1.ImportImageResponse, error) {
		stream, err := c.ImportImage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		header := &cordonv1.ImportImageHeader{Name: "base"}
		msgs := []*cordonv1.ImportImageRequest{{Kind: &cordonv1.ImportImageRequest_Header{Header: header}}}
		for _, s := range chunks {
			msgs = append(msgs, &cordonv1.ImportImageRequest{Kind: &cordonv1.ImportImageRequest_Data{Data: []byte(s)}})
		}
		for _, m := range msgs {
			if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		return stream.CloseAndRecv()
	}
	resp, err := send("12", "345")
	if err != nil || resp.GetImage().GetName() != "base" || resp.GetImage().GetBytes() != 5 {
		t.Errorf("got %v, %v; want an image of 5 bytes", resp, err)
	}
	_, err = send("123", "456")
	wantError(t, err, codes.ResourceExhausted, "data")
	list, err := c.ListImages(t.Context(), &cordonv1.ListImagesRequest{})
	if err != nil || len(list.GetImages()) != 1 {
		t.Errorf("got %v, %v; want one image", list, err)
	}
	mayImport = false
	_, err = send("1")
	wantError(t, err, codes.PermissionDenied, "image")
}

// chatty is a snapshot that talks until it is stopped.
type chatty struct {
	*apitest.Store
	stopped chan error
}

func (c chatty) SnapshotHost(ctx context.Context, progress func(string)) (api.Image, error) {
	for i := 0; ctx.Err() == nil; i++ {
		progress(fmt.Sprintf("file %d", i))
	}
	c.stopped <- context.Cause(ctx)
	return api.Image{}, ctx.Err()
}

func TestSnapshotHostEndsWithItsCaller(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root") // the method table lets nobody else
	}
	images := chatty{apitest.NewStore(), make(chan error, 1)}
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) { cfg.Images = images }))
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := c.SnapshotHost(ctx, &cordonv1.SnapshotHostRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || resp.GetProgress() != "file 0" {
		t.Errorf("got %v, %v; want the first progress", resp, err)
	}
	cancel()
	if err := <-images.stopped; err == nil {
		t.Error("the snapshot went on without a caller")
	}
}

// vague is a store that fails, after the stream did, with its own words.
type vague struct{ *apitest.Store }

func (vague) PutInput(_ context.Context, _ string, r io.Reader, _ int64, _ string) (string, error) {
	_, err := io.Copy(io.Discard, r)
	if err != nil {
		return "", errors.New("something went wrong")
	}
	return "", fault.New(fault.DiskFull, "inputs", "no room", "free some")
}

// A caller learns its own mistake, whatever the store makes of it.
func TestUploadErrorIsTheStreams(t *testing.T) {
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) { cfg.Images = vague{apitest.NewStore()} }))
	put := func(msgs ...*cordonv1.PutInputRequest) error {
		stream, err := c.PutInput(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		_, err = stream.CloseAndRecv()
		return err
	}
	wantError(t, put(inputHeader("acme", 3), inputData("x")), codes.InvalidArgument, "header.size")
	wantError(t, put(inputHeader("acme", 1), inputData("x")), codes.ResourceExhausted, "inputs")
}

func TestExport(t *testing.T) {
	fake := apitest.NewSupervisor()
	big := strings.Repeat("0123456789abcdef", 10_000)
	fake.Files["big"] = []byte(big)
	fake.Files["empty"] = nil
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := acquire(t, c)
	for path, want := range map[string]string{"big": big, "empty": ""} {
		stream, err := c.Export(t.Context(), &cordonv1.ExportRequest{Ref: ref, Path: path})
		if err != nil {
			t.Fatal(err)
		}
		var order strings.Builder
		var got []byte
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch kind := resp.GetKind().(type) {
			case *cordonv1.ExportResponse_Header:
				order.WriteString("h")
				if kind.Header.GetSize() != int64(len(want)) || kind.Header.GetPath() != path {
					t.Errorf("header %v, want %s and %d bytes", kind.Header, path, len(want))
				}
			case *cordonv1.ExportResponse_Data:
				order.WriteString("d")
				got = append(got, kind.Data...)
			case *cordonv1.ExportResponse_Trailer:
				order.WriteString("t")
				if kind.Trailer.GetSize() != int64(len(want)) || !strings.HasPrefix(kind.Trailer.GetSha256(), "sha256:") {
					t.Errorf("trailer %v, want %d bytes", kind.Trailer, len(want))
				}
			}
		}
		wantOrder := "h" + strings.Repeat("d", (len(want)+wire.ChunkBytes-1)/wire.ChunkBytes) + "t"
		if diff := cmp.Diff(wantOrder, order.String()); diff != "" {
			t.Errorf("order of %s (-want +got):\n%s", path, diff)
		}
		if string(got) != want {
			t.Errorf("%s: %d bytes, want %d", path, len(got), len(want))
		}
	}
	stream, err := c.Export(t.Context(), &cordonv1.ExportRequest{Ref: ref, Path: "../etc/shadow"})
	if err == nil {
		_, err = stream.Recv()
	}
	wantError(t, err, codes.PermissionDenied, "path")
}

func TestWatchEndsWithTheLease(t *testing.T) {
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), nil))
	ref := acquire(t, c)
	stream, err := c.Watch(t.Context(), &cordonv1.WatchRequest{Ref: ref, FromSequence: 1})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := stream.Recv(); err != nil || e.GetSequence() != 1 || e.GetAttributes()["state"] != "active" {
		t.Errorf("got %v, %v; want the first event", e, err)
	}
	if _, err := c.Release(t.Context(), &cordonv1.ReleaseRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	if e, err := stream.Recv(); err != nil || e.GetAttributes()["state"] != "closed" {
		t.Errorf("got %v, %v; want the closing", e, err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the closing: %v, want EOF", status.Convert(err))
	}
}
