#!/bin/sh
# sources.sh prints the Go files that people write: those of the main module
# without generated ones.
set -eu
cd "$(dirname "$0")/.."
find . \( -path ./.git -o -path ./bin -o -path ./tools \) -prune -o -name '*.go' -print |
	xargs grep -L '^// Code generated .* DO NOT EDIT\.$'
