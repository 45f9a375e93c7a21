// Package deps pins modules while the packages that need them are being written.
package deps

import (
	_ "github.com/MicahParks/keyfunc/v3"
	_ "github.com/apache/arrow-go/v18/arrow/csv"
	_ "github.com/apache/arrow-go/v18/arrow/ipc"
	_ "github.com/apache/arrow-go/v18/parquet/pqarrow"
	_ "github.com/bmatcuk/doublestar/v4"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/cockroachdb/pebble"
	_ "github.com/fsnotify/fsnotify"
	_ "github.com/go-chi/chi/v5/middleware"
	_ "github.com/goccy/go-yaml"
	_ "github.com/golang-jwt/jwt/v5"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/uuid"
	_ "github.com/open-policy-agent/opa/v1/cover"
	_ "github.com/open-policy-agent/opa/v1/format"
	_ "github.com/open-policy-agent/opa/v1/loader"
	_ "github.com/open-policy-agent/opa/v1/rego"
	_ "github.com/open-policy-agent/opa/v1/tester"
	_ "github.com/pierrec/lz4/v4"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/santhosh-tekuri/jsonschema/v6"
	_ "github.com/spf13/cobra"
	_ "github.com/zeebo/xxh3"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/term"
	_ "golang.org/x/time/rate"
	_ "golang.org/x/tools/go/packages"
)


