package evidence

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestLoadOrCreateKey(t *testing.T) {
	dir := t.TempDir()
	first, err := LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadOrCreateKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !first.Equal(again) {
		t.Error("a second load made another key")
	}
	info, err := os.Stat(filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o", got)
	}
	if names, _ := os.ReadDir(dir); len(names) != 1 {
		t.Errorf("left beside the key: %v", names)
	}
}

func TestLoadOrCreateKeyConcurrent(t *testing.T) {
	dir := t.TempDir()
	keys := make([]ed25519.PrivateKey, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			key, err := LoadOrCreateKey(dir)
			if err != nil {
				t.Error(err)
			}
			keys[i] = key
		})
	}
	wg.Wait()
	for _, k := range keys {
		if !k.Equal(keys[0]) {
			t.Fatal("two keys for one directory")
		}
	}
}

func TestLoadKeyRefuses(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	rsaDER, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	edDER, err := x509.MarshalPKCS8PrivateKey(testKey(1))
	if err != nil {
		t.Fatal(err)
	}
	good := pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: edDER})
	tests := []struct {
		name string
		data []byte
		mode os.FileMode
	}{
		{"empty", nil, 0o600},
		{"no pem", []byte("key"), 0o600},
		{"another block", pem.EncodeToMemory(&pem.Block{Type: publicBlock, Bytes: edDER}), 0o600},
		{"broken", pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: edDER[:20]}), 0o600},
		{"rsa", pem.EncodeToMemory(&pem.Block{Type: privateBlock, Bytes: rsaDER}), 0o600},
		{"two keys", append(bytes.Clone(good), good...), 0o600},
		{"readable by others", good, 0o640},
		{"large", bytes.Repeat([]byte("x"), maxKeyFile+1), 0o600},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, KeyFile)
			if err := os.WriteFile(path, tt.data, tt.mode); err != nil {
				t.Fatal(err)
			}
			if _, err := LoadOrCreateKey(dir); err == nil {
				t.Error("accepted")
			}
			if now, _ := os.ReadFile(path); !bytes.Equal(now, tt.data) {
				t.Error("a refused key file was changed")
			}
		})
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "elsewhere"), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, KeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateKey(dir); err == nil {
		t.Error("symbolic link: accepted")
	}
}

func TestParsePublicKey(t *testing.T) {
	pub := publicOf(testKey(3))
	enc, err := EncodePublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString(pub)
	for name, in := range map[string]string{"pem": string(enc), "base64": b64 + "\n"} {
		got, err := ParsePublicKey([]byte(in))
		if err != nil || !got.Equal(pub) {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	for name, in := range map[string]string{"empty": "", "short": b64[:8], "text": "not a key", "bad pem": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"} {
		if _, err := ParsePublicKey([]byte(in)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
