package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/fluss-sluice/sluice/broker/target/fluss"
	"github.com/fluss-sluice/sluice/broker/target/fluss/zk"
	flussclient "github.com/fluss-sluice/sluice/fluss/client"
	"github.com/fluss-sluice/sluice/internal/objstore"
	"github.com/fluss-sluice/sluice/internal/objstore/local"
	"github.com/fluss-sluice/sluice/internal/objstore/s3"
)

// clusterConfig is what `doctor cluster` reads of sluiced's configuration file.
type clusterConfig struct {
	store  doctorConfig
	Target struct {
		Fluss struct {
			Bootstrap []string `yaml:"bootstrap"`
			SASL      struct {
				Username     string `yaml:"username"`
				PasswordFile string `yaml:"password_file"`
			} `yaml:"sasl"`
			ZooKeeper         []string `yaml:"zookeeper"`
			ZooKeeperRoot     string   `yaml:"zookeeper_root"`
			ZooKeeperAuthFile string   `yaml:"zookeeper_auth_file"`
		} `yaml:"fluss"`
	} `yaml:"target"`
}

func newDoctorCluster(g *globals) *cobra.Command {
	var config string
	c := &cobra.Command{
		Use:   "cluster --config sluiced.yaml",
		Short: "Find out whether loads into a live cluster can work as configured",
		Long: `Find out whether loads into a live cluster can work as configured: whether the
cluster answers, whether its ZooKeeper can be read and written with this credential, and
whether cluster and sluiced see the same remote directory. Nothing is changed that lasts.

Exit code 0: all of it. 1: something cannot work.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return &usageError{errors.New("which cluster? name sluiced's --config")}
			}
			d, closeAll, err := openCluster(cmd.Context(), config)
			if err != nil {
				return err
			}
			defer closeAll()
			return g.printFindings(d.Examine(cmd.Context()))
		},
	}
	c.Flags().StringVar(&config, "config", "", "sluiced's configuration file, with target.fluss")
	return c
}

func (g *globals) printFindings(list []fluss.Finding) error {
	if g.json() {
		if err := g.printJSON(list); err != nil {
			return err
		}
	} else {
		w := g.columns()
		fmt.Fprintln(w, "VERDICT\tCHECK\tSEEN\tTHEREFORE")
		for _, f := range list {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Verdict, f.Check, f.Seen, f.Therefore)
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if n := failed(list); n > 0 {
		return &doctorFinding{fmt.Errorf("%d of %d checks failed", n, len(list)), exitFailed}
	}
	return nil
}

func failed(list []fluss.Finding) (n int) {
	for _, f := range list {
		if f.Verdict == fluss.FindingFail {
			n++
		}
	}
	return n
}

// openCluster opens what the configuration names, as sluiced does.
func openCluster(ctx context.Context, file string) (d *fluss.Driver, closeAll func(), err error) {
	var closers []func() error
	closeAll = func() {
		for _, c := range closers {
			_ = c() // nothing was written
		}
	}
	defer func() {
		if err != nil {
			closeAll()
		}
	}()
	c, err := readCluster(file)
	if err != nil {
		return nil, closeAll, err
	}
	f := c.Target.Fluss
	cc := flussclient.Config{Bootstrap: f.Bootstrap}
	if f.SASL.Username != "" {
		password, err := readSecret("the cluster's password", f.SASL.PasswordFile)
		if err != nil {
			return nil, closeAll, err
		}
		cc.SASL = flussclient.Password(f.SASL.Username, password.Reveal())
	}
	cl, err := flussclient.Dial(ctx, cc)
	if err != nil {
		return nil, closeAll, err
	}
	closers = append(closers, cl.Close)
	fc := fluss.Config{Client: cl, RootURI: c.store.Target.Directory.Root, ReadOnly: len(f.ZooKeeper) == 0}
	if len(f.ZooKeeper) > 0 {
		zc := zk.Config{Servers: f.ZooKeeper, Root: f.ZooKeeperRoot}
		if f.ZooKeeperAuthFile != "" {
			zc.Digest = func(context.Context) (string, error) {
				auth, err := readSecret("ZooKeeper's user and password", f.ZooKeeperAuthFile)
				return auth.Reveal(), err
			}
		}
		z, err := zk.New(zc)
		if err != nil {
			return nil, closeAll, err
		}
		closers = append(closers, z.Close)
		fc.ZooKeeper = z
	}
	store, err := c.objects(ctx)
	if err != nil {
		return nil, closeAll, err
	}
	if o, ok := store.(io.Closer); ok {
		closers = append(closers, o.Close)
	}
	fc.Objects = store
	d, err = fluss.Open(fc)
	return d, closeAll, err
}

func readCluster(file string) (clusterConfig, error) {
	var c clusterConfig
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := errors.Join(yaml.Unmarshal(text, &c.store), yaml.Unmarshal(text, &c)); err != nil {
		return c, &usageError{fmt.Errorf("%s: %w", file, err)}
	}
	if len(c.Target.Fluss.Bootstrap) == 0 {
		return c, &usageError{fmt.Errorf("%s: target.fluss.bootstrap is empty: there is no cluster to examine", file)}
	}
	return c, nil
}

func (c *clusterConfig) objects(ctx context.Context) (objstore.Store, error) {
	u, err := url.Parse(c.store.Target.Directory.Root)
	if err != nil {
		return nil, &usageError{fmt.Errorf("target.directory.root: %w", err)}
	}
	if u.Scheme != "s3" {
		return local.Open(u.Path, local.Options{})
	}
	o := c.store.Target.Directory.S3
	keys, err := keyFiles{o.AccessKeyFile, o.SecretKeyFile}.provider(ctx, o.Region)
	if err != nil {
		return nil, err
	}
	return s3.Open(s3.Config{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Region: o.Region, Endpoint: o.Endpoint, PathStyle: o.PathStyle, Credentials: keys,
	})
}
