package hostpolicy

import (
	"io/fs"
	"testing"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
)

func TestCheckFile(t *testing.T) {
	tests := []struct {
		name string
		file FileFacts
		want []string
	}{
		{"good", FileFacts{0o644, 0, 100}, nil},
		{"secret", FileFacts{0o600, 0, strictyaml.MaxBytes}, nil},
		{"link", FileFacts{fs.ModeSymlink | 0o644, 0, 10}, []string{"/p: is not a regular file"}},
		{"fifo", FileFacts{fs.ModeNamedPipe | 0o600, 0, 0}, []string{"/p: is not a regular file"}},
		{"device", FileFacts{fs.ModeDevice | fs.ModeCharDevice | 0o600, 0, 0}, []string{"/p: is not a regular file"}},
		{"directory", FileFacts{fs.ModeDir | 0o755, 0, 0}, []string{"/p: is not a regular file"}},
		{"owner", FileFacts{0o644, 1000, 10}, []string{"/p: belongs to uid 1000 [chown root /p]"}},
		{"group may write", FileFacts{0o664, 0, 10}, []string{"/p: can be written by others (mode 0664) [chmod go-w /p]"}},
		{"all may write", FileFacts{0o646, 0, 10}, []string{"/p: can be written by others (mode 0646)"}},
		{"large", FileFacts{0o644, 0, strictyaml.MaxBytes + 1}, []string{"/p: has 65537 bytes"}},
		{"everything", FileFacts{fs.ModeSocket | 0o666, 7, 1 << 20}, []string{"/p: is not a regular file", "/p: belongs to uid 7", "/p: can be written", "/p: has 1048576 bytes"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantFaults(t, CheckFile("/p", tt.file), fault.InvalidPolicy, tt.want)
		})
	}
	if err := CheckDir("/d", FileFacts{fs.ModeDir | 0o755, 0, 4096}); err != nil {
		t.Error(err)
	}
	wantFaults(t, CheckDir("/d", FileFacts{fs.ModeDir | 0o777, 5, 0}), fault.InvalidPolicy, []string{"/d: belongs to uid 5", "/d: can be written"})
	wantFaults(t, CheckDir("/d", FileFacts{0o644, 0, 0}), fault.InvalidPolicy, []string{"/d: is not a directory"})
}
