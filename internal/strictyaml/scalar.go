package strictyaml

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle

var (
	integerPattern  = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)
	durationPattern = regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`)
	coresPattern    = regexp.MustCompile(`^(0|[1-9][0-9]{0,9})(?:\.([0-9]{1,3}))?$`)
)

func isQuoted(n *yaml.Node) bool { return n.Style&quoted != 0 }

// setText takes quoted text, and plain text that no YAML reader would take for
// anything else. A plain timestamp is text here: its letters are kept.
func setText(n *yaml.Node, dst reflect.Value) *Problem {
	if !isQuoted(n) {
		kind := ""
		switch {
		case n.Tag == "!!int", n.Tag == "!!float":
			kind = "a number"
		case n.Tag == "!!bool", isOldBool(n.Value):
			kind = "a truth value to some readers"
		case n.Tag == "!!merge":
			kind = "a merge sign"
		}
		if kind != "" {
			return &Problem{
				Cause:  quote(n.Value) + " without quotes is " + kind + "; text belongs here",
				Remedy: "write it in quotes: " + quote(n.Value),
			}
		}
	}
	if p := checkContent(n.Value); p != nil {
		return p
	}
	dst.SetString(n.Value)
	return nil
}

// checkContent judges text after its escapes were undone.
func checkContent(s string) *Problem {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return &Problem{Cause: "text with a NUL or a broken character", Remedy: "remove the escape"}
	}
	return nil
}

// isOldBool reports the words that YAML 1.1 takes for booleans and 1.2 for text.
func isOldBool(s string) bool {
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off":
		return true
	}
	return false
}

func setBool(n *yaml.Node, dst reflect.Value) *Problem {
	if isQuoted(n) || n.Value != "true" && n.Value != "false" {
		return &Problem{
			Cause:  shown(n) + " where true or false belongs",
			Remedy: "write true or false, in lower case and without quotes",
		}
	}
	dst.SetBool(n.Value == "true")
	return nil
}

func setInt(n *yaml.Node, dst reflect.Value) *Problem {
	if p := checkInteger(n); p != nil {
		return p
	}
	v, err := strconv.ParseInt(n.Value, 10, dst.Type().Bits())
	if err != nil {
		most := uint64(1)<<(dst.Type().Bits()-1) - 1
		return outOfRange(n, fmt.Sprintf("-%d", most+1), most)
	}
	dst.SetInt(v)
	return nil
}

func setUint(n *yaml.Node, dst reflect.Value) *Problem {
	if p := checkInteger(n); p != nil {
		return p
	}
	v, err := strconv.ParseUint(n.Value, 10, dst.Type().Bits())
	if err != nil {
		return outOfRange(n, "0", ^uint64(0)>>(64-dst.Type().Bits()))
	}
	dst.SetUint(v)
	return nil
}

func outOfRange(n *yaml.Node, least string, most uint64) *Problem {
	return &Problem{
		Cause:  fmt.Sprintf("%s is out of range", shown(n)),
		Remedy: fmt.Sprintf("use %s to %d", least, most),
	}
}

// checkInteger wants a plain decimal integer: YAML readers disagree about
// leading zeros, signs, underscores, bases and exponents.
func checkInteger(n *yaml.Node) *Problem {
	if !isQuoted(n) && integerPattern.MatchString(n.Value) {
		return nil
	}
	cause := shown(n) + " is not a whole number in plain decimal digits"
	remedy := "write digits only, such as 1048576"
	if isQuoted(n) {
		cause = shown(n) + " in quotes is text; a whole number belongs here"
		remedy = "write digits only, without quotes"
	}
	return &Problem{Cause: cause, Remedy: remedy}
}

func shown(n *yaml.Node) string { return quote(n.Value) }

func setDuration(n *yaml.Node, dst reflect.Value) *Problem {
	remedy := "write a positive time with its unit, such as 500ms, 10m or 1h30m"
	if !durationPattern.MatchString(n.Value) {
		return &Problem{Cause: shown(n) + " is not a time", Remedy: remedy}
	}
	v, err := time.ParseDuration(n.Value)
	if err != nil {
		return &Problem{Cause: shown(n) + " is out of range", Remedy: remedy}
	}
	if v <= 0 {
		return &Problem{Cause: shown(n) + " is no time at all", Remedy: remedy}
	}
	dst.SetInt(int64(v))
	return nil
}

// readForm calls form and turns whatever it says into a problem.
func readForm(form Form, text string) (int64, *Problem) {
	v, err := form(text)
	if err == nil {
		return v, nil
	}
	var p *Problem
	if !errors.As(err, &p) {
		p = &Problem{Cause: err.Error()}
	}
	return 0, p
}

// MilliCores is the Form of cpu limits: cores with up to three decimals, such
// as 2 or 0.5, become thousandths.
func MilliCores(text string) (int64, error) {
	m := coresPattern.FindStringSubmatch(text)
	bad := &Problem{
		Cause:  quote(text) + " is not a number of cores",
		Remedy: "write cores with at most three decimals, such as 2 or 0.5",
	}
	if m == nil {
		return 0, bad
	}
	milli, err := strconv.ParseInt(m[1]+(m[2] + "000")[:3], 10, 64)
	if err != nil {
		return 0, bad
	}
	if milli == 0 {
		bad.Cause = quote(text) + " is no cpu at all"
		return 0, bad
	}
	return milli, nil
}

// FormatMilliCores is the inverse of MilliCores.
func FormatMilliCores(milli int64) string {
	if milli < 0 { // never read from a document, but shown in messages
		return "-" + FormatMilliCores(-max(milli, -math.MaxInt64))
	}
	s := fmt.Sprintf("%d.%03d", milli/1000, milli%1000)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
