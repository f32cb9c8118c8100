package artifacts

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"cordon/artifacts/unpack"
)

// Defaults of Config's optional fields.
const (
	defaultImageBytes = 4 << 30
	defaultImageFiles = 400_000
	defaultInputBytes = 4 << 30
	defaultStagedTTL  = time.Hour

	defaultImages      = 64
	defaultStoreBytes  = 64 << 30
	defaultStagedFiles = 1000
	defaultIdleTimeout = 30 * time.Second
)

// Config is what a store needs to know.
type Config struct {
	// Dir is the daemon's state directory; the store makes images/ and
	// inputs/ in it. Required, absolute.
	Dir string
	// ImageIDBase is the host id that owns in-image uid and gid 0; the 65536
	// ids from there on belong to the store alone. Required, not below 65536.
	ImageIDBase uint32
	// MaxImageBytes bounds the files of one image; default 4 GiB.
	MaxImageBytes int64
	// MaxImageFiles bounds the entries of one image; default 400,000.
	MaxImageFiles int64
	// MaxImages bounds the images of the store, those in the making included;
	// default 64. The store removes none, since it does not know which ones
	// leases use: the operator does, with the daemon stopped, by removing an
	// image's directory.
	MaxImages int64
	// MaxStoreBytes bounds what all images take of the disk, with 4 KiB on top
	// for each entry; default 64 GiB. One in the making counts as the largest
	// that it may become.
	MaxStoreBytes int64
	// MaxInputBytes bounds one input, and the different ones of a lease
	// together; default 4 GiB.
	MaxInputBytes int64
	// MaxStagedBytes bounds the inputs one tenant has staged or on their way
	// in, each rounded up to 4 KiB; default four times MaxInputBytes.
	MaxStagedBytes int64
	// MaxStagedFiles bounds their number; default 1000.
	MaxStagedFiles int64
	// StagedTTL is how long an input that no lease uses is kept; default one
	// hour.
	StagedTTL time.Duration
	// IdleTimeout ends an upload that gives no byte for so long; default 30 s.
	IdleTimeout time.Duration
	// Now is the clock; default time.Now.
	Now func() time.Time
	// UnpackCommand starts the unpack worker; the limits are appended. The
	// program must be executable by any uid and call unpack.Run. Default
	// {"/proc/self/exe", "unpack"}.
	UnpackCommand []string
}

func (c *Config) fill() {
	setDefault(&c.MaxImageBytes, defaultImageBytes)
	setDefault(&c.MaxImageFiles, defaultImageFiles)
	setDefault(&c.MaxImages, defaultImages)
	setDefault(&c.MaxStoreBytes, defaultStoreBytes)
	setDefault(&c.MaxInputBytes, defaultInputBytes)
	setDefault(&c.MaxStagedBytes, 4*room(c.MaxInputBytes))
	setDefault(&c.MaxStagedFiles, defaultStagedFiles)
	setDefault(&c.StagedTTL, defaultStagedTTL)
	setDefault(&c.IdleTimeout, defaultIdleTimeout)
	if c.Now == nil {
		c.Now = time.Now
	}
	if len(c.UnpackCommand) == 0 {
		c.UnpackCommand = []string{"/proc/self/exe", "unpack"}
	}
}

func setDefault[T ~int64](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

func (c *Config) check() error {
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("check store config: dir %q is not absolute", c.Dir)
	}
	// Below 65536 live the host's own users; at the top the range would wrap.
	if c.ImageIDBase <= unpack.MaxID || c.ImageIDBase > 1<<32-1-(unpack.MaxID+1) {
		return fmt.Errorf("check store config: image id base %d leaves no range of its own", c.ImageIDBase)
	}
	if min(c.MaxImageBytes, c.MaxImageFiles, c.MaxImages, c.MaxStoreBytes, c.MaxInputBytes, c.MaxStagedBytes,
		c.MaxStagedFiles, int64(c.StagedTTL), int64(c.IdleTimeout)) < 0 {
		return errors.New("check store config: a limit is negative")
	}
	if largest := c.largestImage(); c.MaxStoreBytes < largest {
		return fmt.Errorf("check store config: images of %d bytes do not fit into a store of %d", largest, c.MaxStoreBytes)
	}
	if !filepath.IsAbs(c.UnpackCommand[0]) {
		return fmt.Errorf("check store config: unpack command %q is not absolute", c.UnpackCommand[0])
	}
	return nil
}

// largestImage is the most that one image takes of the disk.
func (c *Config) largestImage() int64 {
	return ImageInfo{Bytes: c.MaxImageBytes, Files: c.MaxImageFiles}.room()
}

func (c *Config) limits() unpack.Limits {
	return unpack.Limits{Bytes: c.MaxImageBytes, Files: c.MaxImageFiles}
}
