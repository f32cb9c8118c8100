package artifacts

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cordon/internal/fault"
	"cordon/internal/sys"
)

// Uploads that stall keep nobody else out, though their callers cannot return
// before their streams do.
func TestImportImageStalled(t *testing.T) {
	requireRoot(t)
	s := openStore(t, func(c *Config) { c.IdleTimeout = 300 * time.Millisecond })
	start := tarOf(t, file("etc/passwd", "x"))[:1024]
	var streams []*io.PipeWriter
	ended := make(chan error, maxImports)
	for range maxImports {
		pr, pw := io.Pipe()
		streams = append(streams, pw)
		go func() {
			_, err := s.ImportImage(context.Background(), "stalled", pr, nil)
			ended <- err
		}()
		if _, err := pw.Write(start); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	info, err := s.ImportImage(ctx, "x", bytes.NewReader(tarOf(t, file("a", ""))), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !sys.PollUntil(waitTime, 5*time.Millisecond, func() bool { return len(namesIn(t, s.path(imagesDir, stagingDir))) == 0 }) {
		t.Error("a stalled import keeps its directory")
	}
	assertOnlyImages(t, s, info)
	select {
	case err := <-ended:
		t.Errorf("returned before its read: %v", err)
	default:
	}
	for _, pw := range streams {
		pw.CloseWithError(errors.New("stream ended"))
		if err := <-ended; fault.CodeOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "no byte came for 300ms") {
			t.Errorf("got %v", err)
		}
	}
}

func TestPutInputStalled(t *testing.T) {
	requireRoot(t)
	s := openStore(t, func(c *Config) { c.IdleTimeout = 50 * time.Millisecond })
	pr, pw := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := s.PutInput(context.Background(), "acme", 8, "", pr)
		ended <- err
	}()
	if _, err := pw.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	free := func() bool {
		s.inputs.Lock()
		defer s.inputs.Unlock()
		return len(s.stock) == 0
	}
	if !sys.PollUntil(waitTime, 5*time.Millisecond, free) {
		t.Error("a stalled upload is still charged")
	}
	assertNothingIncoming(t, s)
	pw.CloseWithError(errors.New("stream ended"))
	if err := <-ended; fault.CodeOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "no byte came for 50ms") {
		t.Errorf("got %v", err)
	}
}

// Only waiting for the stream counts, and each byte starts it anew.
func TestRelayPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pr, pw := io.Pipe()
		go func() {
			for range 3 {
				time.Sleep(29 * time.Second)
				_, _ = pw.Write([]byte("x"))
			}
			pw.Close()
		}()
		got, err := relay(t.Context(), 30*time.Second, pr, func(r io.Reader) (string, error) {
			time.Sleep(time.Hour) // busy with something else
			b, err := io.ReadAll(r)
			return string(b), err
		})
		if got != "xxx" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestRelayEnds(t *testing.T) {
	gone, enough := errors.New("client gone"), errors.New("enough")
	readAll := func(r io.Reader) (string, error) {
		b, err := io.ReadAll(r)
		return string(b), err
	}
	for _, tt := range []struct {
		name string
		r    io.Reader
		use  func(io.Reader) (string, error)
		want string
		err  error
	}{
		{"whole", strings.NewReader("hello"), readAll, "hello", nil},
		{"broken stream", io.MultiReader(strings.NewReader("he"), errReader{gone}), readAll, "he", gone},
		{"reader had enough", zeros{}, func(io.Reader) (string, error) { return "", enough }, "", enough},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := relay(t.Context(), time.Minute, tt.r, tt.use)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, tt.want, tt.err)
			}
		})
	}
}
