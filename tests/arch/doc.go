// Package arch holds the rules about the tree itself as tests: which package
// may import which, who may use which module or call, that every package says
// what it is for, how long files and functions may be, and what no text here
// may contain.
//
// The tables of rules_test.go are the picture of the tree. They are exact: an
// import that no row allows fails, and so does a row that nothing uses. It
// reads source text only, needs no root, no git and no build, and takes a few
// seconds. What a package does is its own tests' business.
package arch
