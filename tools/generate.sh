#!/bin/sh
# generate.sh [-check]
#
# Makes the generated code again with the pinned tools: the API from api/v1
# with buf, the eBPF programs with clang, the system-call numbers. With -check it does so in a copy of
# the tree and fails on a difference.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
go=${GO:-go}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# generate DIR: the tools are this tree's, the code is DIR's. buf finds its
# plugins on PATH.
generate() {
	mkdir -p "$work/bin"
	"$go" build -modfile="$root/tools/go.mod" -o "$work/bin/" \
		google.golang.org/protobuf/cmd/protoc-gen-go \
		google.golang.org/grpc/cmd/protoc-gen-go-grpc
	"$go" build -modfile="$root/tools/buf/go.mod" -o "$work/bin/" \
		github.com/bufbuild/buf/cmd/buf
	(cd "$1/api" && PATH=$work/bin:$PATH buf lint && PATH=$work/bin:$PATH buf generate)
	(cd "$1" && "$go" generate ./ebpf ./jail/...)
}

if [ "${1:-}" != -check ]; then
	generate "$root"
	exit 0
fi
# A copy of the tree, without what is generated: a file that no source gives
# any more shows as missing.
mkdir "$work/tree" "$work/had"
tar -cf - --exclude=./.git --exclude=./bin . | tar -xf - -C "$work/tree"
cd "$work/tree"
generated() {
	find api ebpf jail -name '*.go' -exec grep -l '^// Code generated .* DO NOT EDIT\.$' {} + || :
	find ebpf -name '*.o'
}
generated | tar -cf - -T - | tar -xf - -C "$work/had"
generated | xargs rm -f
generate "$work/tree"
generated | tar -cf - -T - | (mkdir "$work/made" && tar -xf - -C "$work/made")
diff -r "$work/had" "$work/made" || {
	echo "generated code is not what its source gives [make generate]" >&2
	exit 1
}
