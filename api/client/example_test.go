package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"cordon/api/client"
	"cordon/supervisor/envelope"
)

// A whole run: input in, a command, an artifact out, the record kept.
func Example() {
	ctx := context.Background()
	c, err := client.Dial(ctx, client.DefaultSocket)
	if err != nil {
		log.Fatal(err) // says whether cordond runs, and what to do
	}
	defer c.Close()

	in, err := os.Open("data.csv") // with this program's own rights
	if err != nil {
		log.Fatal(err)
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		log.Fatal(err)
	}
	input, err := c.PutInput(ctx, "acme", in, st.Size(), "")
	if err != nil {
		log.Fatal(err)
	}

	lease, err := c.Acquire(ctx, envelope.Envelope{
		ImageDigest: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
		Identity:    envelope.Identity{Tenant: "acme", RunID: "run-17"},
		Filesystem:  envelope.Filesystem{Inputs: []envelope.Input{{Name: "data.csv", Digest: input.Digest}}},
		Resources:   envelope.Resources{CPUMilli: 2000, MemoryBytes: 1 << 30, WallClock: 10 * time.Minute},
		Artifacts:   envelope.Artifacts{Allow: []string{"result.json"}},
	}, client.AcquireOptions{Key: "run-17/1"})
	if err != nil {
		log.Fatal(err)
	}

	end, err := lease.Run(ctx, client.Command{
		Argv:   []string{"sort", "-o", "result.json", "/inputs/data.csv"},
		Stdout: os.Stdout,
		Stderr: os.Stderr,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(end.Cause, end.ExitStatus(), end.Usage.Wall)

	out, err := os.Create("result.json")
	if err != nil {
		log.Fatal(err)
	}
	digest, size, err := lease.Export(ctx, "result.json", out)
	if err = errors.Join(err, out.Close()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(digest, size)

	record, err := lease.Release(ctx) // nothing of the run is left now
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(record.State, record.Head)
}

// An interactive shell: a terminal, its size, and the keys that signal.
func ExampleLease_Run_terminal() {
	var lease *client.Lease // from Acquire
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	resize := make(chan client.Size) // fed on SIGWINCH

	end, err := lease.Run(context.Background(), client.Command{
		Argv: []string{"bash"},
		TTY:  true, Size: client.Size{Rows: 24, Cols: 80}, Resize: resize,
		Stdin: os.Stdin, Stdout: os.Stdout,
		Signals: signals,
	})
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(end.ExitStatus())
}

// A command that outlives the program that started it.
func ExampleLease_Attach() {
	ctx, leave := context.WithTimeout(context.Background(), time.Second)
	defer leave()
	var lease *client.Lease // from Acquire
	var id string
	_, err := lease.Run(ctx, client.Command{
		Argv: []string{"make", "-j2"}, Keep: true,
		Started: func(execID string) { id = execID },
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		log.Fatal(err)
	}
	// Later, perhaps in another process, with lease id, secret and exec id kept.
	end, err := lease.Attach(context.Background(), id, client.Streams{Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(end.OK())
}

// What a controller does about errors: branch on the code, show the rest.
func ExampleError() {
	var c *client.Client // from Dial
	_, err := c.Acquire(context.Background(), envelope.Envelope{}, client.AcquireOptions{})
	if e, ok := errors.AsType[*client.Error](err); ok {
		switch e.Code {
		case client.HostFull:
			// try another host, or later
		case client.PolicyExceeded:
			fmt.Printf("%s: %s\n%s\n", e.Field, e.Cause, e.Remedy)
		}
	}
}

// Events, from the first one on, until the lease is closed.
func ExampleLease_Watch() {
	var lease *client.Lease // from Acquire
	for event, err := range lease.Watch(context.Background(), 0) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Sequence, event.Kind, event.Attributes)
	}
}
