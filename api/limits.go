package api

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"cordon/internal/fault"
)

// Limits bound what one peer (one uid) may use of the server. Zero fields
// take the default that each names.
type Limits struct {
	CallsPerSecond float64 // default 1000
	CallBurst      int     // default 2000
	CallsInFlight  int     // streams included; default 512
	Connections    int     // default 64
	AllConnections int     // of all peers together; default 1024
	InputBytes     int64   // of one input file; default 16 GiB
	ImageBytes     int64   // of one image's tar; default 64 GiB
}

func (l Limits) withDefaults() Limits {
	return Limits{
		CallsPerSecond: orDefault(l.CallsPerSecond, 1000),
		CallBurst:      orDefault(l.CallBurst, 2000),
		CallsInFlight:  orDefault(l.CallsInFlight, 512),
		Connections:    orDefault(l.Connections, 64),
		AllConnections: orDefault(l.AllConnections, 1024),
		InputBytes:     orDefault(l.InputBytes, 16<<30),
		ImageBytes:     orDefault(l.ImageBytes, 64<<30),
	}
}

func orDefault[T int | int64 | float64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// sparse thins out what is logged about refusals: a flood of them must not
// become a flood of lines. The zero value is ready.
type sparse struct {
	untold int
	told   time.Time
}

// count notes one refusal and returns how many to log now: 0 while something
// was logged less than a second ago.
func (s *sparse) count(now time.Time) int {
	s.untold++
	if now.Sub(s.told) < time.Second {
		return 0
	}
	n := s.untold
	s.untold, s.told = 0, now
	return n
}

// connLimit counts open connections by uid.
type connLimit struct {
	limits Limits
	now    func() time.Time

	mu      sync.Mutex
	open    map[uint32]int
	total   int
	refused sparse
}

func newConnLimit(l Limits, now func() time.Time) *connLimit {
	return &connLimit{limits: l, now: now, open: make(map[uint32]int)}
}

// take admits one connection; give ends it. With an error, tell is how many
// refusals to log.
func (c *connLimit) take(uid uint32) (tell int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[uid] >= c.limits.Connections || c.total >= c.limits.AllConnections {
		return c.refused.count(c.now()), fmt.Errorf("connection of uid %d: %d open, %d in all", uid, c.open[uid], c.total)
	}
	c.open[uid]++
	c.total++
	return 0, nil
}

func (c *connLimit) give(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.open[uid]--; c.open[uid] <= 0 {
		delete(c.open, uid)
	}
}

// callLimit bounds how often and how many at once each uid calls.
type callLimit struct {
	limits Limits
	now    func() time.Time

	mu    sync.Mutex
	peers map[uint32]*peerCalls
}

// peerCalls is one uid's account. Guarded by callLimit.mu.
type peerCalls struct {
	bucket   *rate.Limiter
	inFlight int
	refused  sparse
}

func newCallLimit(l Limits, now func() time.Time) *callLimit {
	return &callLimit{limits: l, now: now, peers: make(map[uint32]*peerCalls)}
}

// take admits one call. The caller gives it back when the call has ended.
// With an error, tell is how many refusals to log.
func (c *callLimit) take(uid uint32) (tell int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	p := c.peers[uid]
	if p == nil {
		c.forgetIdleLocked(now)
		p = &peerCalls{bucket: rate.NewLimiter(rate.Limit(c.limits.CallsPerSecond), c.limits.CallBurst)}
		c.peers[uid] = p
	}
	switch {
	case p.inFlight >= c.limits.CallsInFlight:
		err = fault.New(fault.HostFull, "calls in flight", fmt.Sprintf("this user has %d", p.inFlight),
			"wait for some to end")
	case !p.bucket.AllowN(now, 1):
		err = fault.New(fault.HostFull, "call rate",
			fmt.Sprintf("this user calls more often than %g times a second", c.limits.CallsPerSecond), "slow down")
	default:
		p.inFlight++
		return 0, nil
	}
	return p.refused.count(now), err
}

func (c *callLimit) give(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[uid]; p != nil {
		p.inFlight--
	}
}

// forgetIdleLocked drops accounts that say nothing any more, once there are
// many. Few users can open the socket, so this hardly ever runs.
func (c *callLimit) forgetIdleLocked(now time.Time) {
	if len(c.peers) < 1024 {
		return
	}
	for uid, p := range c.peers {
		if p.inFlight == 0 && p.bucket.TokensAt(now) >= float64(c.limits.CallBurst) {
			delete(c.peers, uid)
		}
	}
}
