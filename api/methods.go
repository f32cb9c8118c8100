package api

import (
	"time"

	cordonv1 "cordon/api/v1"
)

// kind is what a caller is, for the method table. The zero value is the least
// of them.
type kind uint8

const (
	kindOther  kind = iota // may open the socket, speaks for no tenant
	kindTenant             // speaks for at least one tenant
	kindRoot               // uid 0
)

func (k kind) String() string {
	return [...]string{"other", "tenant", "root"}[k]
}

// rule is one row of the method table. The zero value admits nobody.
type rule struct {
	root, tenant, other bool
	// ceiling is the longest the call may take, whatever deadline it brought.
	ceiling time.Duration
}

func (r rule) admits(k kind) bool {
	switch k {
	case kindRoot:
		return r.root
	case kindTenant:
		return r.tenant
	case kindOther:
		return r.other
	}
	return false
}

const (
	short    = 15 * time.Second
	building = 2 * time.Minute  // makes or unmakes a sandbox
	copying  = 30 * time.Minute // moves files
	// whileLeased is for calls that the end of the lease ends.
	whileLeased = 1<<63 - 1
)

// methodTable says who may call what. What has no row is refused. A row only
// opens the door: the supervisor still asks for the lease's owner and secret,
// and the host policy for the tenant.
//
// ImportImage asks the host policy too, since images are shared by all
// tenants of the host. Info is for everybody who can open the socket: it is how one learns that
// one speaks for no tenant.
var methodTable = map[string]rule{
	cordonv1.Supervisor_Acquire_FullMethodName: {root: true, tenant: true, ceiling: building},
	cordonv1.Supervisor_Renew_FullMethodName:   {root: true, tenant: true, ceiling: short},
	cordonv1.Supervisor_Get_FullMethodName:     {root: true, tenant: true, ceiling: short},
	cordonv1.Supervisor_List_FullMethodName:    {root: true, tenant: true, ceiling: short},
	cordonv1.Supervisor_Exec_FullMethodName:    {root: true, tenant: true, ceiling: whileLeased},
	cordonv1.Supervisor_Attach_FullMethodName:  {root: true, tenant: true, ceiling: whileLeased},
	cordonv1.Supervisor_Export_FullMethodName:  {root: true, tenant: true, ceiling: copying},
	cordonv1.Supervisor_Release_FullMethodName: {root: true, tenant: true, ceiling: building},
	cordonv1.Supervisor_Watch_FullMethodName:   {root: true, tenant: true, ceiling: whileLeased},

	cordonv1.Supervisor_PutInput_FullMethodName:     {root: true, tenant: true, ceiling: copying},
	cordonv1.Supervisor_ImportImage_FullMethodName:  {root: true, tenant: true, ceiling: copying},
	cordonv1.Supervisor_SnapshotHost_FullMethodName: {root: true, ceiling: copying},
	cordonv1.Supervisor_ListImages_FullMethodName:   {root: true, tenant: true, ceiling: short},

	cordonv1.Supervisor_GetRecord_FullMethodName: {root: true, tenant: true, ceiling: short},
	cordonv1.Supervisor_Info_FullMethodName:      {root: true, tenant: true, other: true, ceiling: short},
}
