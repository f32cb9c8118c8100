package envelope

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"cordon/internal/strictyaml"
)

// Format writes e as the document that Parse reads back to e. Fields that mean
// "the default" are left out; of a completed envelope, everything is there.
func Format(e Envelope) []byte {
	return append([]byte(root+":\n"), formatStruct(reflect.ValueOf(e), "", "  ")...)
}

// formatStruct writes one field a line; path tells the few that are special.
func formatStruct(v reflect.Value, path, indent string) []byte {
	var b bytes.Buffer
	for i := range v.NumField() {
		name := v.Type().Field(i).Tag.Get("yaml")
		f := v.Field(i)
		switch {
		case f.Kind() == reflect.Struct:
			if body := formatStruct(f, path+name+".", indent+"  "); len(body) != 0 {
				fmt.Fprintf(&b, "%s%s:\n%s", indent, name, body)
			}
		case f.Kind() == reflect.Slice && f.Len() == 0:
			fmt.Fprintf(&b, "%s%s: []\n", indent, name)
		case f.Kind() == reflect.Slice:
			fmt.Fprintf(&b, "%s%s:\n", indent, name)
			for j := range f.Len() {
				b.Write(formatItem(f.Index(j), indent+"  "))
			}
		default:
			if text := formatScalar(f, path+name); text != "" {
				fmt.Fprintf(&b, "%s%s: %s\n", indent, name, text)
			}
		}
	}
	return b.Bytes()
}

func formatItem(v reflect.Value, indent string) []byte {
	if v.Kind() != reflect.Struct {
		return []byte(indent + "- " + quoteText(v.String()) + "\n")
	}
	body := formatStruct(v, "", indent+"  ")
	if len(body) == 0 {
		return []byte(indent + "- {}\n")
	}
	return append([]byte(indent+"- "), body[len(indent)+2:]...)
}

// formatScalar is the value's document form, or "" to leave the field out.
func formatScalar(v reflect.Value, path string) string {
	switch {
	case v.Kind() == reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case path == "network_egress.max_bytes":
		return strconv.FormatInt(v.Int(), 10) // 0 is its value, not its absence
	case v.IsZero():
		return ""
	case v.Kind() == reflect.String:
		return quoteText(v.String())
	case v.Type() == reflect.TypeFor[time.Duration]():
		return formatDuration(time.Duration(v.Int()))
	case path == "resources.cpu":
		return formatCores(v.Int())
	case v.CanUint():
		return strconv.FormatUint(v.Uint(), 10)
	}
	return strconv.FormatInt(v.Int(), 10)
}

func formatCores(milli int64) string {
	return strictyaml.FormatMilliCores(milli)
}

// formatDuration is "10m" where time.Duration says "10m0s".
func formatDuration(d time.Duration) string {
	s := strings.ReplaceAll(d.String(), "µs", "us")
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// plainPattern is text that no YAML reader takes for anything but text, the
// words that plainText excludes aside.
var plainPattern = regexp.MustCompile(`^[a-zA-Z/][a-zA-Z0-9._/-]*(:[a-zA-Z0-9._/-]+)*$`)

// quoteText writes s plain where that is safe, and in double quotes otherwise.
func quoteText(s string) string {
	if plainPattern.MatchString(s) && !reservedWord(s) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteRune('\\')
			b.WriteRune(c)
		case unicode.IsPrint(c) && c != '\uFEFF':
			b.WriteRune(c)
		case c > 0xFFFF:
			fmt.Fprintf(&b, `\U%08x`, c)
		default:
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// reservedWord reports what some YAML reader takes for a truth value or null.
func reservedWord(s string) bool {
	switch strings.ToLower(s) {
	case "true", "false", "null", "y", "n", "yes", "no", "on", "off":
		return true
	}
	return false
}
