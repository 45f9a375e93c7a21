package builder_test

import (
	"context"
	"fmt"
	"log"

	"github.com/fluss-sluice/sluice/api/client"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/fluss/row"
)

// A whole load by one worker, read back afterwards.
func Example() {
	ctx := context.Background()
	c, err := builder.Connect(builder.Config{
		URL: "https://sluice.example:8470", Identity: client.FileToken("/var/run/secrets/tokens/sluice"),
	})
	if err != nil {
		log.Fatal(err)
	}
	target := builder.Target{Database: "shop", Table: "orders"}
	load, err := c.Begin(ctx, builder.BeginRequest{Target: target, SubmissionID: "orders-2026-09-01"})
	if err != nil {
		log.Fatal(err)
	}
	s, err := c.Open(ctx, load, builder.OpenOptions{WorkDir: "/scratch"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for id := range int64(1000) {
		if err := s.Write([]row.Value{row.Int64(id), row.String("a name")}); err != nil {
			log.Fatal(err)
		}
	}
	files, err := s.Finish(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := c.Commit(ctx, load, files); err != nil {
		log.Fatal(err)
	}

	scan, err := c.SnapshotScan(ctx, builder.ScanRequest{Target: target, Columns: []string{"id"}, Limit: 10})
	if err != nil {
		log.Fatal(err)
	}
	defer scan.Close()
	for r, err := range scan.Rows() {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r[0].Int())
	}
}
