package strictyaml

import "strings"

// nearest returns the name that was probably meant by word, or "".
func nearest(word string, names []string) string {
	if len(word) > 64 { // no field name is as long; the distance costs its square
		return ""
	}
	word = fold(word)
	best, least := "", 0
	for _, name := range names {
		d := distance(word, fold(name))
		if d > min(3, max(1, len(name)/3)) {
			continue
		}
		if best == "" || d < least {
			best, least = name, d
		}
	}
	return best
}

// fold removes what people write differently: case, and the word separator.
func fold(s string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s))
}

// distance counts the insertions, deletions, changes and swaps of neighbours
// that lead from a to b.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(last[j]+1, row[j-1]+1, change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
