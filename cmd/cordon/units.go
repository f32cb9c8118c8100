package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cordon/internal/strictyaml"
)

var bytesPattern = regexp.MustCompile(`^([0-9]{1,19})(?:([KMGT])(?:iB|B)?)?$`)

// parseBytes reads a positive number of bytes: 1048576, 512M, 1GiB. The units
// are powers of 1024, as with every limit of the kernel.
func parseBytes(s string) (int64, error) {
	m := bytesPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("not a size: write bytes, or K, M, G or T with digits before it, such as 512M")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := int64(1)
	if m[2] != "" {
		unit <<= 10 * (1 + strings.Index("KMGT", m[2]))
	}
	if err != nil || n > math.MaxInt64/unit {
		return 0, errors.New("larger than any machine")
	}
	if n == 0 {
		return 0, errors.New("0 is no limit to run with")
	}
	return n * unit, nil
}

// parseCores reads cores as the envelope document writes them, as thousandths.
func parseCores(s string) (int64, error) {
	milli, err := strictyaml.MilliCores(s)
	var p *strictyaml.Problem
	switch {
	case errors.As(err, &p):
		return 0, errors.New(p.Cause + ": " + p.Remedy)
	case err != nil:
		return 0, err
	case milli == 0:
		return 0, errors.New("0 is no limit to run with")
	}
	return milli, nil
}

func parseCount(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return 0, errors.New("not a positive whole number")
	}
	return n, nil
}

// parseLength reads a positive time.
func parseLength(s string) (int64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("not a time: write it with its unit, such as 500ms, 10m or 1h30m")
	}
	return int64(d), nil
}

// quantity is a flag that holds a number in some form of writing.
type quantity struct {
	dst   *int64
	parse func(string) (int64, error)
	kind  string
	text  string
}

func (q *quantity) String() string { return q.text }
func (q *quantity) Type() string   { return q.kind }

func (q *quantity) Set(s string) error {
	n, err := q.parse(s)
	if err != nil {
		return err
	}
	*q.dst, q.text = n, s
	return nil
}

// formatBytes is a size for people: 17 B, 1.5 MiB, 20 GiB.
func formatBytes(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/(1<<10), 0
	for v >= 1023.95 && i < len(units)-1 {
		v /= 1 << 10
		i++
	}
	text := fmt.Sprintf("%.1f", v)
	if v >= 99.95 {
		text = fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%s %ciB", strings.TrimSuffix(text, ".0"), units[i])
}

// formatCores is thousandths of a core as cores.
func formatCores(milli int64) string { return strictyaml.FormatMilliCores(milli) }

// formatLength is a time for people, to three digits or so.
func formatLength(d time.Duration) string {
	switch {
	case d >= time.Minute:
		s := d.Round(time.Second).String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		return s
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// shortDigest is enough of a digest to tell it by: sha256:3fa94c1b22d0.
func shortDigest(s string) string {
	const most = len("sha256:") + 12
	if strings.HasPrefix(s, "sha256:") && len(s) > most {
		return s[:most]
	}
	return s
}
