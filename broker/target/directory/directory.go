// Package directory is a target driver for a warehouse without a cluster.
package directory

import (
	"errors"
	"time"

	"github.com/fluss-sluice/sluice/internal/objstore"
)

// Config configures a Driver.
type Config struct {
	// Objects is the store that holds the warehouse.
	Objects objstore.Store
	// RootURI is the URI of key "" of Objects, e.g. file:///srv/warehouse; it is
	// the remote_data_dir of every table.
	RootURI string
	Now     func() time.Time // nil = time.Now
}

// Driver implements target.Driver, target.Catalog and target.Snapshots.
type Driver struct {
	c Config
}

// Open checks the configuration; it does not touch the store.
func Open(c Config) (*Driver, error) { return nil, errors.New("not built yet") }
