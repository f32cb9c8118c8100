package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"cordon/api"
	"cordon/api/apitest"
	cordonv1 "cordon/api/v1"
	"cordon/supervisor/hostpolicy"
)

func isRoot() bool { return os.Getuid() == 0 }

const (
	socketEnv  = "API_TEST_SOCKET"
	uidEnv     = "API_TEST_UID"
	groupGID   = 54300
	tenantUID  = 54321
	otherUID   = 54322
	outsideUID = 54323 // not in the group
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketEnv); socket != "" {
		if err := callAs(socket); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// callAs becomes another user and prints the status of a few calls.
func callAs(socket string) error {
	var uid int
	if _, err := fmt.Sscan(os.Getenv(uidEnv), &uid); err != nil {
		return err
	}
	groups := []int{groupGID}
	if uid == outsideUID {
		groups = nil
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(uid), syscall.Setuid(uid)); err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	c := cordonv1.NewSupervisorClient(conn)
	ctx := context.Background()
	info, err := c.Info(ctx, &cordonv1.InfoRequest{})
	fmt.Println("Info", status.Code(err), info.GetTenants())
	_, err = c.List(ctx, &cordonv1.ListRequest{})
	fmt.Println("List", status.Code(err))
	stream, err := c.SnapshotHost(ctx, &cordonv1.SnapshotHostRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	fmt.Println("SnapshotHost", status.Code(err))
	return nil
}

// Real users, told apart by the kernel: who may open the socket, and who may
// then call what.
func TestUsers(t *testing.T) {
	if !isRoot() {
		t.Skip("needs root") // to become other users
	}
	socket := apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
		cfg.Tenants = func(p hostpolicy.Peer) []hostpolicy.Tenant {
			if p.UID == tenantUID {
				return []hostpolicy.Tenant{{Name: "acme"}}
			}
			return nil
		}
	})
	dir := filepath.Dir(socket)
	for _, name := range []string{dir, socket} { // as Listen(path, groupGID) makes them
		if err := os.Chown(name, 0, groupGID); err != nil {
			t.Fatal(err)
		}
	}
	for d := filepath.Dir(dir); d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for uid, want := range map[int]string{
		0:          "Info OK []\nList OK\nSnapshotHost OK\n",
		tenantUID:  "Info OK [acme]\nList OK\nSnapshotHost PermissionDenied\n",
		otherUID:   "Info OK []\nList PermissionDenied\nSnapshotHost PermissionDenied\n",
		outsideUID: "Info Unavailable []\nList Unavailable\nSnapshotHost Unavailable\n",
	} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), socketEnv+"="+socket, fmt.Sprintf("%s=%d", uidEnv, uid))
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("uid %d: %v\n%s\nwant\n%s", uid, err, strings.TrimSpace(string(out)), want)
		}
	}
}
