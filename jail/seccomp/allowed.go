package seccomp

// allowed lists the calls that a process may make with any arguments. Each
// acts on what the process already holds or can name, within its namespaces,
// its cgroup and its user id.
func allowed() []group {
	return []group{
		{"files: opening, reading and writing", `
			open openat openat2 creat close close_range dup dup2 dup3 flock
			read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2
			lseek truncate ftruncate fallocate fadvise64 readahead
			fsync fdatasync sync syncfs sync_file_range
			sendfile copy_file_range splice tee pipe pipe2`},
		{"files: names, directories and metadata", `
			stat lstat fstat newfstatat statx statfs fstatfs
			access faccessat faccessat2 getcwd chdir fchdir umask
			getdents getdents64 mkdir mkdirat rmdir unlink unlinkat
			rename renameat renameat2 link linkat symlink symlinkat readlink readlinkat
			chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
			utime utimes utimensat futimesat`},
		{"extended attributes; the privileged name spaces need capabilities", `
			getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat
			setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr`},
		{"waiting for events", `
			poll ppoll select pselect6
			epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
			eventfd eventfd2 signalfd signalfd4
			timerfd_create timerfd_settime timerfd_gettime
			inotify_init inotify_init1 inotify_add_watch inotify_rm_watch`},
		{"memory of the process itself", `
			brk mmap munmap mremap mprotect madvise msync mincore mseal
			mlock mlock2 munlock munlockall memfd_create membarrier`},
		{"starting, replacing and ending processes and threads", `
			fork vfork execve execveat exit exit_group wait4 waitid
			set_tid_address set_robust_list get_robust_list rseq arch_prctl restart_syscall
			futex futex_wait futex_wake futex_requeue futex_waitv
			pidfd_open pidfd_send_signal kill tkill tgkill`},
		{"who a process is, to itself and in its session", `
			getpid getppid gettid getpgid getpgrp getsid setpgid setsid
			getuid geteuid getgid getegid getresuid getresgid getgroups capget`},
		{"changing ids; without a capability only among those it has", `
			setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups`},
		{"scheduling and limits, within what the cgroup leaves", `
			sched_yield sched_getaffinity sched_setaffinity sched_getattr
			sched_getparam sched_setparam sched_getscheduler sched_setscheduler
			sched_get_priority_max sched_get_priority_min sched_rr_get_interval
			getpriority setpriority ioprio_get ioprio_set getcpu
			getrlimit setrlimit prlimit64 getrusage times sysinfo uname getrandom`},
		{"signals and timers", `
			rt_sigaction rt_sigprocmask rt_sigpending rt_sigsuspend rt_sigtimedwait rt_sigreturn
			rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack pause alarm
			getitimer setitimer timer_create timer_settime timer_gettime timer_getoverrun timer_delete`},
		{"reading clocks and sleeping", `
			time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep`},
		{"using sockets that the rules for socket allow", `
			bind listen accept accept4 connect shutdown
			getsockname getpeername getsockopt
			recvfrom recvmsg recvmmsg`},
		{"System V and POSIX queues, semaphores and memory of the ipc namespace", `
			shmget shmat shmdt shmctl semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
			mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr`},
		{"a process restricting itself further", `
			landlock_create_ruleset landlock_add_rule landlock_restrict_self`},
	}
}
