/* SPDX-License-Identifier: Apache-2.0
 *
 * The few declarations these programs need beyond the kernel's own user
 * headers: section and map-definition macros, and the helpers called, by the
 * numbers linux/bpf.h gives them. Nothing here depends on a kernel's BTF: only
 * contexts that the kernel promises to user space are touched.
 */
#ifndef CORDON_KERNEL_H
#define CORDON_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

/* A map definition is a struct of pointers whose types carry the numbers. */
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) type *name

#define HELPER(id) (void *)(id)

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) =
	HELPER(BPF_FUNC_map_lookup_elem);
static __u64 (*const bpf_ktime_get_boot_ns)(void) =
	HELPER(BPF_FUNC_ktime_get_boot_ns);
static __u64 (*const bpf_get_current_pid_tgid)(void) =
	HELPER(BPF_FUNC_get_current_pid_tgid);
static long (*const bpf_get_current_comm)(void *buf, __u32 size) =
	HELPER(BPF_FUNC_get_current_comm);
static __u64 (*const bpf_get_current_ancestor_cgroup_id)(int level) =
	HELPER(BPF_FUNC_get_current_ancestor_cgroup_id);
static __u64 (*const bpf_skb_ancestor_cgroup_id)(struct __sk_buff *skb,
						 int level) =
	HELPER(BPF_FUNC_skb_ancestor_cgroup_id);
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb,
					__u32 offset, void *to, __u32 len) =
	HELPER(BPF_FUNC_skb_load_bytes);
static void *(*const bpf_ringbuf_reserve)(void *map, __u64 size, __u64 flags) =
	HELPER(BPF_FUNC_ringbuf_reserve);
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) =
	HELPER(BPF_FUNC_ringbuf_submit);

#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)

#endif
