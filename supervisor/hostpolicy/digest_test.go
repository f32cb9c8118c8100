package hostpolicy

import (
	"strings"
	"testing"
)

func TestDigest(t *testing.T) {
	same := []string{
		"allow_host_image: true\ntenants: [{name: a, peers: [{uid: 1001}, {gid: 10}], images: [host, '*']}, {name: b}]\n",
		"allow_host_image: true\ntenants: [{name: b}, {name: a, peers: [{group: wheel}, {user: alice}], images: ['*', host, host]}]\n",
		"host: {budget_fraction: 0.5, cpu: 4}\nallow_host_image: true\ntenants: [{name: b, max: {leases: 64}}, {name: a, peers: [{gid: 10}, {uid: 1001}, {uid: 1001}, {user: nobody-here}], images: ['*', host]}]\n",
	}
	want := parsed(t, same[0]).Digest()
	if !strings.HasPrefix(want, "sha256:") || len(want) != 71 {
		t.Errorf("digest %q", want)
	}
	for _, doc := range same[1:] {
		if got := parsed(t, doc).Digest(); got != want {
			t.Errorf("the same policy has another digest:\n%s", doc)
		}
	}
	seen := map[string]string{want: "the first"}
	for _, doc := range []string{
		"tenants: []\n",
		"allow_host_image: true\ntenants: []\n",
		"host: {cpu: 1}\ntenants: []\n",
		"host: {id_base: 131072}\ntenants: []\n",
		"host: {id_count: 65536}\ntenants: []\n",
		"tenants: [{name: a}]\n",
		"tenants: [{name: a, import_images: true}]\n",
		"tenants: [{name: a, images: [host]}]\n",
		"tenants: [{name: a, peers: [{uid: 1}]}]\n",
		"tenants: [{name: a, peers: [{gid: 1}]}]\n",
		"tenants: [{name: a, max: {leases: 1}}]\n",
		"tenants: [{name: a, max: {lease: 1s}}]\n",
		"tenants: [{name: a, max: {wall_clock: 1s}}]\n",
	} {
		got := parsed(t, doc).Digest()
		if other, ok := seen[got]; ok {
			t.Errorf("%q has the digest of %q", doc, other)
		}
		seen[got] = doc
	}
	if (Policy{}).Digest() != "" {
		t.Error("the zero policy has a digest")
	}
}
