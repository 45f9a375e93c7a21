package policy

import (
	"fmt"
	"log/slog"
)

var discard = slog.New(slog.DiscardHandler)

func sprint(v any) string { return fmt.Sprintf("%+v", v) }
