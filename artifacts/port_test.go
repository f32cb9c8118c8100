package artifacts_test

import (
	"cordon/artifacts"
	"cordon/supervisor"
)

var _ supervisor.Store = (*artifacts.Store)(nil)

var _ supervisor.InputChecker = (*artifacts.Store)(nil)
