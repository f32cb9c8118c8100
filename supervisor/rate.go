package supervisor

import (
	"fmt"
	"sync"
	"time"

	"cordon/internal/fault"
)

// mostRated is how many owners are remembered before those are forgotten
// that have used nothing up.
const mostRated = 1024

// acquireRate is a token bucket for each owner: what an attempt costs the
// host and the journal, it costs whether or not it succeeds. Time is the
// caller's to tell. It is safe for concurrent use.
type acquireRate struct {
	every time.Duration // until one more
	burst int

	mu sync.Mutex
	// full is when an owner's bucket will be full again; one that is not
	// here is full.
	full map[uint32]time.Time
}

func newAcquireRate(perSecond, burst int) *acquireRate {
	return &acquireRate{every: time.Second / time.Duration(perSecond), burst: burst, full: make(map[uint32]time.Time)}
}

// take uses up one attempt of owner's, or refuses it.
func (r *acquireRate) take(owner uint32, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.full[owner]
	if full.Before(now) {
		full = now
	}
	full = full.Add(r.every)
	if full.Sub(now) > time.Duration(r.burst)*r.every {
		return fault.New(fault.HostFull, "acquire rate",
			fmt.Sprintf("uid %d has used up its attempts; one more comes every %s", owner, r.every), "wait a second and try again")
	}
	r.full[owner] = full
	if len(r.full) > mostRated {
		r.forgetLocked(now)
	}
	return nil
}

func (r *acquireRate) forgetLocked(now time.Time) {
	for owner, full := range r.full {
		if !full.After(now) {
			delete(r.full, owner)
		}
	}
}
