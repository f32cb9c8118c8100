package supervisor

import (
	"errors"
	"log/slog"

	"cordon/internal/fault"
)

// mostLogged bounds each text of a log line, which may be a tenant's.
const mostLogged = 256

func logText(key, text string) slog.Attr {
	return slog.String(key, clipTo(text, mostLogged-len("...")))
}

func logError(err error) slog.Attr {
	if err == nil {
		return slog.Any(keyError, nil)
	}
	return logText(keyError, err.Error())
}

// logRefusal says why a request was refused: the first finding, and how many
// there are. An envelope of nothing but mistakes makes no longer a line.
func logRefusal(err error) []slog.Attr {
	attrs := []slog.Attr{slog.String(keyCode, string(fault.CodeOf(err))), slog.Int(keyFindings, countFindings(err))}
	if first, ok := errors.AsType[*fault.Fault](err); ok {
		return append(attrs, logText(keyField, first.Field), logError(first))
	}
	return append(attrs, logError(err))
}

// countFindings counts the faults that were joined; any other error is one.
func countFindings(err error) int {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return 1
	}
	n := 0
	for _, e := range joined.Unwrap() {
		n += countFindings(e)
	}
	return n
}
