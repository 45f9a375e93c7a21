package env

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

const tieringHeap = "768m"

// StartTiering starts Fluss's own Flink job that tiers tables into the lake, in one
// process: Kill, Restart and Log know it as Tiering. It returns when the process runs;
// the first lake snapshot of a table follows some seconds after its
// table.datalake.freshness. When the job is killed, Fluss gives the tables that it was at
// work on to another one only two minutes later.
func (f *Fluss) StartTiering(ctx context.Context) error {
	if !f.o.Lake {
		return errors.New("start tiering: the cluster has no lake")
	}
	n := node{Tiering, 0}
	if p, err := f.process(n); err != nil || p != nil && p.alive() {
		return err
	}
	if err := f.launch(ctx, n); err != nil {
		return fmt.Errorf("start tiering: %w", err)
	}
	return nil
}

func (f *Fluss) tieringCommand(flags []string) []string {
	flags = append(flags, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.log.org.apache.fluss.flink=info")
	for _, chatty := range []string{"flink.runtime.metrics", "hadoop", "paimon.utils.HadoopUtils", "flink.runtime.webmonitor", "flink.runtime.security"} {
		flags = append(flags, "-Dorg.slf4j.simpleLogger.log.org.apache."+chatty+"=error")
	}
	args := append(flags, "-cp", classPath(filepath.Join(f.lake, "flink"), filepath.Join(f.lake, "plugin")), tieringClass,
		"--fluss.bootstrap.servers", loopback(f.ports[node{Coordinator, 0}].internal), "--fluss.tiering.poll.table.interval", "1s")
	for k, v := range f.lakeConfig("--") {
		args = append(args, k, v)
	}
	return args
}
