package seccomp

// refused lists the calls that no rule mentions, and why. It makes no rules:
// the default answers them. It exists so that every call is somewhere.
func refused() []group {
	return []group{
		{"mounts and roots: the file system of a jail is made from outside", `
			mount umount2 pivot_root chroot fsopen fsconfig fsmount fspick move_mount
			open_tree open_tree_attr mount_setattr statmount listmount
			quotactl quotactl_fd swapon swapoff sysfs ustat`},
		{"namespaces: clone has its own rule", `
			unshare setns listns sethostname setdomainname`},
		{"files by handle go around the path that was hidden", `
			name_to_handle_at open_by_handle_at`},
		{"watching a whole mount", `
			fanotify_init fanotify_mark`},
		{"other processes' memory, state and descriptors", `
			ptrace process_vm_readv process_vm_writev process_madvise process_mrelease
			kcmp pidfd_getfd`},
		{"programs in the kernel and its tracing", `
			bpf perf_event_open userfaultfd uprobe uretprobe lookup_dcookie`},
		{"asynchronous calls that a filter cannot see, and their long history of holes", `
			io_uring_setup io_uring_enter io_uring_register
			io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents`},
		{"the kernel itself: modules, another kernel, power, log, accounting", `
			init_module finit_module delete_module create_module query_module get_kernel_syms
			kexec_load kexec_file_load reboot syslog acct vhangup`},
		{"keyrings do not belong to any namespace", `
			add_key request_key keyctl`},
		{"security modules' state", `
			lsm_get_self_attr lsm_set_self_attr lsm_list_modules`},
		{"setting clocks, which all share", `
			settimeofday clock_settime adjtimex clock_adjtime`},
		{"hardware ports, segments and execution domains", `
			ioperm iopl modify_ldt get_thread_area set_thread_area uselib`},
		{"placement of memory and of time, which is the host's", `
			mbind set_mempolicy get_mempolicy set_mempolicy_home_node migrate_pages move_pages
			sched_setattr mlockall rseq_slice_yield`},
		{"capabilities: only PID 1's children give them away, before this filter", `
			capset`},
		{"new or rare, with more of the kernel behind them than any tool needs", `
			memfd_secret map_shadow_stack pkey_alloc pkey_free pkey_mprotect
			cachestat vmsplice remap_file_pages setxattrat removexattrat
			file_getattr file_setattr`},
		{"without an implementation in current kernels", `
			_sysctl afs_syscall epoll_ctl_old epoll_wait_old getpmsg putpmsg
			nfsservctl security tuxcall vserver`},
	}
}
