package artifacts

import (
	"fmt"

	"cordon/internal/fault"
)

// room is the most that an image's files take of the disk: each may fill its
// last block with little, and a directory or a link takes one.
func (i ImageInfo) room() int64 { return i.Bytes + i.Files*blockSize }

// reserveImage keeps a place and the room of the largest image for one in the
// making, until release; by then it is counted among the images or gone.
func (s *Store) reserveImage() (release func(), err error) {
	const remedy = "ask the operator to stop the daemon and remove images that are not needed from the state directory (images/sha256-...)"
	largest := s.cfg.largestImage()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := int64(len(s.images) + s.making); n >= s.cfg.MaxImages {
		return nil, fault.New(fault.HostFull, "image",
			fmt.Sprintf("host stores or makes %d images, and %d is the most", n, s.cfg.MaxImages), remedy)
	}
	used := int64(s.making) * largest
	for _, img := range s.images {
		used += img.info.room()
	}
	if largest > s.cfg.MaxStoreBytes-used {
		return nil, fault.New(fault.HostFull, "image",
			fmt.Sprintf("images take or may come to take %d of the store's %d bytes, and one may need %d",
				used, s.cfg.MaxStoreBytes, largest), remedy)
	}
	s.making++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.making--
	}, nil
}
