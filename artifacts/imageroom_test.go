package artifacts

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"cordon/internal/fault"
)

func TestImportImageStoreLimit(t *testing.T) {
	requireRoot(t)
	// Each image below has the 10 entries of every one and its file.
	const taken, largest = 11*blockSize + 5, blockSize + 100*blockSize
	for _, tt := range []struct {
		name string
		edit func(*Config)
		text string
	}{
		{"count", func(c *Config) { c.MaxImages = 2 }, "image: host stores or makes 2 images, and 2 is the most"},
		{"bytes", func(c *Config) {
			c.MaxImageBytes, c.MaxImageFiles, c.MaxStoreBytes = blockSize, 100, largest+2*taken-1
		}, fmt.Sprintf("image: images take or may come to take %d of the store's %d bytes", 2*taken, largest+2*taken-1)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, tt.edit)
			var stored []ImageInfo
			for _, name := range []string{"one", "two"} {
				info, err := s.ImportImage(t.Context(), name, bytes.NewReader(tarOf(t, file(name, "hello"))), nil)
				if err != nil {
					t.Fatal(err)
				}
				stored = append(stored, info)
			}
			_, err := s.ImportImage(t.Context(), "three", bytes.NewReader(tarOf(t, file("three", ""))), nil)
			if fault.CodeOf(err) != fault.HostFull || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "[ask the operator to stop") {
				t.Errorf("got %v, want host_full with %q", err, tt.text)
			}
			_, err = s.SnapshotHost(t.Context(), HostSource{}, nil)
			if fault.CodeOf(err) != fault.HostFull {
				t.Errorf("snapshot: got %v, want host_full", err)
			}
			assertOnlyImages(t, s, stored...)
			if s.making != 0 {
				t.Errorf("%d images still in the making", s.making)
			}
		})
	}
}

// What fails gives its place back; one in the making has one.
func TestImportImagePlace(t *testing.T) {
	requireRoot(t)
	s := openStore(t, func(c *Config) { c.MaxImages = 1 })
	if _, err := s.ImportImage(t.Context(), "x", strings.NewReader("no tar"), nil); err == nil {
		t.Error("stored what is no tar")
	}
	release, err := s.reserveImage()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.reserveImage(); fault.CodeOf(err) != fault.HostFull {
		t.Errorf("beside one in the making: got %v, want host_full", err)
	}
	release()
	if _, err := s.ImportImage(t.Context(), "x", bytes.NewReader(tarOf(t, file("a", ""))), nil); err != nil {
		t.Error(err)
	}
}
