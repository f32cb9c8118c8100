// SPDX-License-Identifier: Apache-2.0
//
// The egress filter of leases, attached once to the parent of all lease
// cgroups. A lease is an entry of two maps under the id of its own cgroup, one
// level below the parent; descendants share it. No entry, a state other than
// active, or a deadline that has passed refuse everything. An active entry
// allows what never leaves the sandbox: making TCP and UDP sockets, binding
// them to loopback, and packets over lo. Connecting and sending are refused to
// every address.
//
// Counting is exact: the counter is raised before an event is reserved, and
// what gets no event is counted as suppressed (no token) or lost (ring full).
//
// Every program returns 1 to let an operation pass and 0 to refuse it, which
// the kernel answers with EPERM.

#include "kernel.h"

#define AF_INET 2
#define AF_INET6 10
#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define PROTO_TCP 6
#define PROTO_UDP 17

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd

// Every network namespace numbers its loopback 1; the kernel insists on it.
#define LOOPBACK_IFINDEX 1

#define REFUSE 0
#define ALLOW 1

// An event costs one token. A lease holds at most EVENT_BURST and gets a new
// one every EVENT_INTERVAL_NS.
#define EVENT_BURST 128
#define EVENT_INTERVAL_NS 10000000ULL

// Races on the bucket that are lost this often in a row count as an empty one.
#define TOKEN_TRIES 4

#define RING_BYTES (1 << 20)

// The order is part of the map layout: append only, and raise layoutVersion
// in layout_linux.go with any change to a struct below.
enum hook {
	HOOK_SOCK_CREATE,
	HOOK_CONNECT4,
	HOOK_CONNECT6,
	HOOK_SENDMSG4,
	HOOK_SENDMSG6,
	HOOK_BIND4,
	HOOK_BIND6,
	HOOK_SKB_EGRESS,
	HOOKS,
};

enum state {
	STATE_NONE, // the zero value refuses
	STATE_ACTIVE,
};

// What user space says about a lease. Programs only read it, so that replacing
// it (a renewed deadline) cannot lose a count.
struct lease {
	__u64 generation;
	__u64 not_after; // CLOCK_BOOTTIME, ns; refused from then on
	__u32 state;
	__u32 reserved;
};

// What programs say about a lease. User space writes it once, all zero.
struct counters {
	__u64 denied[HOOKS];
	__u64 suppressed; // denials without an event: no token
	__u64 lost;       // denials without an event: ring full
	__u64 last_denied; // CLOCK_BOOTTIME, ns
	__u64 bucket;     // theoretical arrival time of the next event, ns
	__u64 egress_packets;
	__u64 egress_bytes;
	__u64 ingress_packets;
	__u64 ingress_bytes;
};

struct event {
	__u64 cgroup;
	__u64 generation;
	__u64 boot_ns;
	__u32 pid; // 0 where no task can be named
	__u16 protocol;
	__u16 port; // host order
	__u8 hook;
	__u8 family;
	__u8 type;
	__u8 reserved[5];
	__u8 addr[16]; // the first four bytes with AF_INET
	__u8 comm[16]; // the tenant's own word
};

struct header {
	__u64 version;
	__u64 parent; // cgroup id
	__u64 level;  // of lease cgroups
};

// One struct more than the maps use, so that bindings hold its type.
struct event *unused_event SEC(".discard");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 1); // set at load
	MAP_TYPE(key, __u64);
	MAP_TYPE(value, struct lease);
} leases SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_HASH);
	MAP_UINT(max_entries, 1); // set at load
	MAP_TYPE(key, __u64);
	MAP_TYPE(value, struct counters);
} counted SEC(".maps");

// Denials that belong to no lease, by hook.
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, HOOKS);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, __u64);
} unowned SEC(".maps");

struct {
	MAP_UINT(type, BPF_MAP_TYPE_RINGBUF);
	MAP_UINT(max_entries, RING_BYTES);
} events SEC(".maps");

// Programs never read it: it tells the next daemon what these maps are.
struct {
	MAP_UINT(type, BPF_MAP_TYPE_ARRAY);
	MAP_UINT(max_entries, 1);
	MAP_TYPE(key, __u32);
	MAP_TYPE(value, struct header);
} layout SEC(".maps");

// The level of lease cgroups, counted from the root of the v2 tree; set at
// load. At level 0 every task has the same ancestor, the root, which is never
// a lease: forgetting to set it refuses everything.
const volatile __u32 lease_level = 0;

struct attempt {
	__u64 cgroup;
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 addr[4];
	__u16 port;
	int has_task;
};

INLINE void count_unowned(__u32 hook)
{
	__u64 *n = bpf_map_lookup_elem(&unowned, &hook);

	if (n)
		__sync_fetch_and_add(n, 1);
}

// take_token is a token bucket in one word: the time at which the bucket would
// be full again, moved forward by one interval for each token. It needs no
// lock, and the zero value is a full bucket.
INLINE int take_token(struct counters *c, __u64 now)
{
	const __u64 span = EVENT_BURST * EVENT_INTERVAL_NS;
	int i;

#pragma unroll
	for (i = 0; i < TOKEN_TRIES; i++) {
		__u64 old = *(volatile __u64 *)&c->bucket;
		__u64 next = (old > now ? old : now) + EVENT_INTERVAL_NS;

		if (next > now + span)
			return 0;
		if (__sync_val_compare_and_swap(&c->bucket, old, next) == old)
			return 1;
	}
	return 0;
}

INLINE void tell(struct counters *c, __u64 generation, enum hook hook,
		 struct attempt *a, __u64 now)
{
	struct event *e;

	if (!take_token(c, now)) {
		__sync_fetch_and_add(&c->suppressed, 1);
		return;
	}
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		__sync_fetch_and_add(&c->lost, 1);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->cgroup = a->cgroup;
	e->generation = generation;
	e->boot_ns = now;
	e->protocol = a->protocol;
	e->port = a->port;
	e->hook = hook;
	e->family = a->family;
	e->type = a->type;
	__builtin_memcpy(e->addr, a->addr, sizeof(e->addr));
	if (a->has_task) {
		e->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(e->comm, sizeof(e->comm));
	}
	bpf_ringbuf_submit(e, 0);
}

// judge counts and tells a refused attempt. wanted is what the hook would say
// about the attempt of a lease in force. hook is a constant of the caller, so
// that the verifier knows the index.
INLINE int judge(struct attempt *a, enum hook hook, int wanted)
{
	struct lease *l = bpf_map_lookup_elem(&leases, &a->cgroup);
	struct counters *c;
	__u64 now;

	if (!l) {
		count_unowned(hook);
		return REFUSE;
	}
	now = bpf_ktime_get_boot_ns();
	if (wanted == ALLOW && l->state == STATE_ACTIVE && now < l->not_after)
		return ALLOW;
	c = bpf_map_lookup_elem(&counted, &a->cgroup);
	if (!c) {
		count_unowned(hook);
		return REFUSE;
	}
	__sync_fetch_and_add(&c->denied[hook], 1);
	c->last_denied = now;
	tell(c, l->generation, hook, a, now);
	return REFUSE;
}

INLINE __u64 current_lease(void)
{
	return bpf_get_current_ancestor_cgroup_id(lease_level);
}

// sock_create is the only hook that sees raw, ping, SCTP and MPTCP sockets, so
// the list of what may exist is here. Other families never come this way.
SEC("cgroup/sock_create")
int sock_create(struct bpf_sock *ctx)
{
	struct attempt a = {
		.cgroup = current_lease(),
		.family = ctx->family,
		.type = ctx->type,
		.protocol = ctx->protocol,
		.has_task = 1,
	};
	int wanted = REFUSE;

	if (a.family == AF_INET || a.family == AF_INET6) {
		if (a.type == SOCK_STREAM && a.protocol == PROTO_TCP)
			wanted = ALLOW;
		if (a.type == SOCK_DGRAM && a.protocol == PROTO_UDP)
			wanted = ALLOW;
	}
	return judge(&a, HOOK_SOCK_CREATE, wanted);
}

// The two readers below load each word by itself: the verifier takes nothing
// else from this context.
INLINE void read4(struct attempt *a, struct bpf_sock_addr *ctx)
{
	a->cgroup = current_lease();
	a->family = AF_INET;
	a->type = ctx->type;
	a->protocol = ctx->protocol;
	a->addr[0] = ctx->user_ip4;
	a->port = bpf_ntohs((__u16)ctx->user_port);
	a->has_task = 1;
}

INLINE void read6(struct attempt *a, struct bpf_sock_addr *ctx)
{
	a->cgroup = current_lease();
	a->family = AF_INET6;
	a->type = ctx->type;
	a->protocol = ctx->protocol;
	a->addr[0] = ctx->user_ip6[0];
	a->addr[1] = ctx->user_ip6[1];
	a->addr[2] = ctx->user_ip6[2];
	a->addr[3] = ctx->user_ip6[3];
	a->port = bpf_ntohs((__u16)ctx->user_port);
	a->has_task = 1;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read4(&a, ctx);
	return judge(&a, HOOK_CONNECT4, REFUSE);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read6(&a, ctx);
	return judge(&a, HOOK_CONNECT6, REFUSE);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read4(&a, ctx);
	return judge(&a, HOOK_SENDMSG4, REFUSE);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read6(&a, ctx);
	return judge(&a, HOOK_SENDMSG6, REFUSE);
}

// inner4 says whether an address means this sandbox only: 127.0.0.0/8, or any
// address, which without a network card is loopback too.
INLINE int inner4(__u32 be)
{
	return be == 0 || (bpf_ntohl(be) >> 24) == 127;
}

INLINE int inner6(const __u32 be[4])
{
	if (be[0] || be[1])
		return 0;
	if (be[2] == bpf_htonl(0xffff)) // an IPv4 address in IPv6 clothes
		return inner4(be[3]);
	return be[2] == 0 && (be[3] == 0 || be[3] == bpf_htonl(1));
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read4(&a, ctx);
	return judge(&a, HOOK_BIND4, inner4(a.addr[0]) ? ALLOW : REFUSE);
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	struct attempt a = {};

	read6(&a, ctx);
	return judge(&a, HOOK_BIND6, inner6(a.addr) ? ALLOW : REFUSE);
}

// read_packet fills in what the packet's first bytes say about where it goes.
// For this program type offset 0 is the network header. A later fragment or an
// IPv6 extension header gives a wrong or no port; nothing is decided by it.
INLINE void read_packet(struct attempt *a, struct __sk_buff *skb)
{
	__u8 proto = 0, first = 0;
	__be16 port = 0;
	__u32 ports = 0;

	if (skb->protocol == bpf_htons(ETHERTYPE_IPV4)) {
		a->family = AF_INET;
		bpf_skb_load_bytes(skb, 0, &first, sizeof(first));
		bpf_skb_load_bytes(skb, 9, &proto, sizeof(proto));
		bpf_skb_load_bytes(skb, 16, &a->addr[0], 4);
		ports = (first & 0x0f) * 4;
	} else if (skb->protocol == bpf_htons(ETHERTYPE_IPV6)) {
		a->family = AF_INET6;
		bpf_skb_load_bytes(skb, 6, &proto, sizeof(proto));
		bpf_skb_load_bytes(skb, 24, a->addr, 16);
		ports = 40;
	}
	a->protocol = proto;
	if (proto != PROTO_TCP && proto != PROTO_UDP)
		return;
	a->type = proto == PROTO_TCP ? SOCK_STREAM : SOCK_DGRAM;
	bpf_skb_load_bytes(skb, ports + 2, &port, sizeof(port));
	a->port = bpf_ntohs(port);
}

INLINE struct counters *meter(__u64 cgroup)
{
	return bpf_map_lookup_elem(&counted, &cgroup);
}

// skb_egress is the net under the others: whatever got past them leaves only
// over lo. The task that runs is often not the one that sent, so the cgroup is
// the socket's and no task is named.
SEC("cgroup_skb/egress")
int skb_egress(struct __sk_buff *skb)
{
	struct attempt a = {
		.cgroup = bpf_skb_ancestor_cgroup_id(skb, lease_level),
	};
	int wanted = skb->ifindex == LOOPBACK_IFINDEX ? ALLOW : REFUSE;
	struct counters *c;

	read_packet(&a, skb);
	if (judge(&a, HOOK_SKB_EGRESS, wanted) == REFUSE)
		return REFUSE;
	c = meter(a.cgroup);
	if (c) {
		__sync_fetch_and_add(&c->egress_packets, 1);
		__sync_fetch_and_add(&c->egress_bytes, skb->len);
	}
	return ALLOW;
}

SEC("cgroup_skb/ingress")
int skb_ingress(struct __sk_buff *skb)
{
	struct counters *c =
		meter(bpf_skb_ancestor_cgroup_id(skb, lease_level));

	if (c) {
		__sync_fetch_and_add(&c->ingress_packets, 1);
		__sync_fetch_and_add(&c->ingress_bytes, skb->len);
	}
	return ALLOW;
}

// No helper called here is reserved to GPL programs.
char license_of_all[] SEC("license") = "Apache-2.0";
