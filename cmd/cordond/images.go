package main

import (
	"context"
	"io"

	"cordon/api"
	"cordon/artifacts"
	"cordon/internal/fault"
	"cordon/supervisor/hostpolicy"
)

// images is the store as the api wants it, with what the policy says about
// the host's own snapshot.
type images struct {
	store  *artifacts.Store
	policy hostpolicy.Policy
}

func (i images) PutInput(ctx context.Context, tenant string, r io.Reader, size int64, digest string) (string, error) {
	return i.store.PutInput(ctx, tenant, size, digest, r)
}

func (i images) ImportImage(ctx context.Context, name string, tar io.Reader) (api.Image, error) {
	info, err := i.store.ImportImage(ctx, name, tar, nil)
	return image(info), err
}

func (i images) SnapshotHost(ctx context.Context, progress func(string)) (api.Image, error) {
	if !i.policy.HostImageAllowed() {
		return api.Image{}, fault.New(fault.PermissionDenied, "allow_host_image", "the host policy does not allow a snapshot of the host", "set it in the host policy, or import an image")
	}
	info, err := i.store.SnapshotHost(ctx, artifacts.HostSource{}, progress)
	return image(info), err
}

func (i images) Images(context.Context) ([]api.Image, error) {
	var out []api.Image
	for _, info := range i.store.List() {
		out = append(out, image(info))
	}
	return out, nil
}

func image(i artifacts.ImageInfo) api.Image {
	return api.Image{Digest: i.Digest, Name: i.Name, Bytes: i.Bytes, Files: i.Files, Created: i.Created}
}
