package api

import (
	"context"
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

// of is the limits of callers of one kind. Who speaks for no tenant may only
// ask for Info, and needs little.
func (l Limits) of(k kind) Limits {
	if k == kindOther {
		l.CallsPerSecond = min(l.CallsPerSecond, 20)
		l.CallBurst = min(l.CallBurst, 40)
		l.CallsInFlight = min(l.CallsInFlight, 8)
		l.Connections = min(l.Connections, 4)
	}
	return l
}

// account is what is limited together.
type account struct {
	uid  uint32
	kind kind
}

func orDefault[T int | int64 | float64](v, def T) T {
	if v == 0 {
		return def
	}
	return v
}

// sparse thins out what is logged about refusals: a flood of them must not
// become a flood of lines.
type sparse struct {
	untold int
	lines  *rate.Limiter
}

// newSparse lets burst lines pass at once, and one each second after that.
func newSparse(burst int) sparse { return sparse{lines: rate.NewLimiter(1, burst)} }

// count notes one refusal and returns how many to log now, which is 0 when
// enough was logged.
func (s *sparse) count(now time.Time) int {
	s.untold++
	if !s.lines.AllowN(now, 1) {
		return 0
	}
	n := s.untold
	s.untold = 0
	return n
}

// connLimit counts open connections by account.
type connLimit struct {
	limits Limits
	now    func() time.Time

	mu      sync.Mutex
	open    map[account]int
	total   int
	refused sparse
}

func newConnLimit(l Limits, now func() time.Time) *connLimit {
	return &connLimit{limits: l, now: now, open: make(map[account]int), refused: newSparse(1)}
}

// take admits one connection; give ends it. With an error, tell is how many
// refusals to log.
func (c *connLimit) take(a account) (tell int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[a] >= c.limits.of(a.kind).Connections || c.total >= c.limits.AllConnections {
		return c.refused.count(c.now()), fmt.Errorf("connection of uid %d: %d open, %d in all", a.uid, c.open[a], c.total)
	}
	c.open[a]++
	c.total++
	return 0, nil
}

func (c *connLimit) give(a account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.open[a]--; c.open[a] <= 0 {
		delete(c.open, a)
	}
}

// callLimit bounds how often and how many at once each account calls.
type callLimit struct {
	limits Limits
	now    func() time.Time

	mu    sync.Mutex
	peers map[account]*peerCalls
}

// peerCalls is what one account has used. Guarded by callLimit.mu.
type peerCalls struct {
	bucket   *rate.Limiter
	inFlight int
	over     sparse // calls over the limits
	refused  sparse // calls that reached no handler for another reason
}

func newCallLimit(l Limits, now func() time.Time) *callLimit {
	return &callLimit{limits: l, now: now, peers: make(map[account]*peerCalls)}
}

// take admits one call. The caller gives it back when the call has ended.
// With an error, tell is how many refusals to log.
func (c *callLimit) take(a account) (tell int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	limits := c.limits.of(a.kind)
	p := c.peers[a]
	if p == nil {
		c.forgetIdleLocked(now)
		p = &peerCalls{
			bucket: rate.NewLimiter(rate.Limit(limits.CallsPerSecond), limits.CallBurst),
			over:   newSparse(1), refused: newSparse(10),
		}
		c.peers[a] = p
	}
	switch {
	case p.inFlight >= limits.CallsInFlight:
		err = fault.New(fault.HostFull, "calls in flight", fmt.Sprintf("this user has %d", p.inFlight),
			"wait for some to end")
	case !p.bucket.AllowN(now, 1):
		err = fault.New(fault.HostFull, "call rate",
			fmt.Sprintf("this user calls more often than %g times a second", limits.CallsPerSecond), "slow down")
	default:
		p.inFlight++
		return 0, nil
	}
	return p.over.count(now), err
}

func (c *callLimit) give(a account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[a]; p != nil {
		p.inFlight--
	}
}

// refused notes a call that was admitted by take and reached no handler, and
// returns how many of those to log now.
func (c *callLimit) refused(a account) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.peers[a]; p != nil {
		return p.refused.count(c.now())
	}
	return 0 // idle for so long that it was forgotten
}

// forgetIdleLocked drops accounts that say nothing any more, once there are
// many. Few users can open the socket, so this hardly ever runs.
func (c *callLimit) forgetIdleLocked(now time.Time) {
	if len(c.peers) < 1024 {
		return
	}
	for a, p := range c.peers {
		if p.inFlight == 0 && p.bucket.TokensAt(now) >= float64(p.bucket.Burst()) {
			delete(c.peers, a)
		}
	}
}

// turns bounds how many at once of each uid do what is expensive for the
// daemon; the others wait. The zero value is ready.
type turns struct {
	mu   sync.Mutex
	uids map[uint32]*turn
}

// turn is one uid's. It is there while somebody of the uid is.
type turn struct {
	places chan struct{}
	users  int // guarded by turns.mu
}

// turnsAtOnce is how many of one uid have their turn at the same time.
const turnsAtOnce = 2

// take waits for a turn of uid's, or for the end of ctx. The caller calls done
// unless there is an error.
func (t *turns) take(ctx context.Context, uid uint32) (done func(), err error) {
	w := t.join(uid)
	select {
	case w.places <- struct{}{}:
		return func() {
			<-w.places
			t.leave(uid, w)
		}, nil
	case <-ctx.Done():
		t.leave(uid, w)
		return nil, context.Cause(ctx)
	}
}

func (t *turns) join(uid uint32) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.uids[uid]
	if w == nil {
		w = &turn{places: make(chan struct{}, turnsAtOnce)}
		if t.uids == nil {
			t.uids = make(map[uint32]*turn)
		}
		t.uids[uid] = w
	}
	w.users++
	return w
}

func (t *turns) leave(uid uint32, w *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(t.uids, uid)
	}
}
