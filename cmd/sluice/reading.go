package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
	"github.com/spf13/pflag"

	v1 "github.com/fluss-sluice/sluice/api/v1"
	"github.com/fluss-sluice/sluice/builder"
	"github.com/fluss-sluice/sluice/builder/flussdirect"
	"github.com/fluss-sluice/sluice/builder/flussdirect/s3dir"
	"github.com/fluss-sluice/sluice/builder/scan"
	"github.com/fluss-sluice/sluice/fluss/client"
)

// reading is what commands read from: a Sluice server, or a cluster itself.
type reading interface {
	Table(ctx context.Context, database, table string) (*v1.Table, error)
	LatestKVSnapshots(ctx context.Context, t v1.Target) (*v1.KVSnapshots, error)
	KVSnapshotMetadata(ctx context.Context, t v1.Target, bucket int, snapshotID *int64) (*v1.KVSnapshotMetadata, error)
	GetLatestLakeSnapshot(ctx context.Context, t v1.Target) (*v1.LakeSnapshot, error)
	GetLakeSnapshot(ctx context.Context, t v1.Target, id int64) (*v1.LakeSnapshot, error)
	GetReadableLakeSnapshot(ctx context.Context, t v1.Target) (*v1.LakeSnapshot, error)
	ListOffsets(ctx context.Context, t v1.Target, at string) (*v1.Offsets, error)
	TableStats(ctx context.Context, t v1.Target) (*v1.TableStats, error)
	SnapshotScan(ctx context.Context, req scan.Request) (*scan.Scan, error)
	OpenTable(ctx context.Context, t v1.Target, columns ...string) (*scan.Table, error)
	Close() error
}

// fromServer reads through a Sluice server.
type fromServer struct{ *builder.Client }

func (s fromServer) Table(ctx context.Context, database, table string) (*v1.Table, error) {
	return s.API().Table(ctx, database, table)
}

func (fromServer) Close() error { return nil }

// fromCluster reads from a cluster, with the connections that it owns.
type fromCluster struct {
	*flussdirect.Client
	conns *client.Client
}

func (c fromCluster) Close() error { return errors.Join(c.Client.Close(), c.conns.Close()) }

// clusterFlags say which cluster to use, without a Sluice server. They are JSON because
// a resumed load goes on with the same; no secret is in them.
type clusterFlags struct {
	Bootstrap    []string `json:"bootstrap"`
	User         string   `json:"user,omitempty"`
	PasswordFile string   `json:"password_file,omitempty"`
	RemoteDir    string   `json:"remote_dir,omitempty"`
	Region       string   `json:"region,omitempty"`
	Endpoint     string   `json:"endpoint,omitempty"`
	PathStyle    bool     `json:"path_style,omitempty"`
}

// add adds the flags of all commands; what says what the command does with a cluster.
func (f *clusterFlags) add(fs *pflag.FlagSet, what string) {
	fs.StringSliceVar(&f.Bootstrap, "cluster", nil, what+" this Fluss cluster itself, without a server: host:port of any of its servers (repeatable)")
	fs.StringVar(&f.User, "sasl-user", "", "user of the cluster, where it wants one")
	fs.StringVar(&f.PasswordFile, "sasl-password-file", "", "file with the user's password")
}

// addStore adds the flags of commands that reach files of snapshots.
func (f *clusterFlags) addStore(fs *pflag.FlagSet) {
	fs.StringVar(&f.RemoteDir, "remote-dir", "", "where the cluster's remote directory is mounted here (default: where the cluster says)")
	fs.StringVar(&f.Region, "region", "us-east-1", "region of the cluster's S3 bucket; keys come from the AWS SDK's usual places")
	fs.StringVar(&f.Endpoint, "endpoint", "", "base URL of an S3 service other than AWS")
	fs.BoolVar(&f.PathStyle, "path-style", false, "put the S3 bucket into the path instead of the host name")
}

// open connects to what the flags name.
func (f *clusterFlags) open(ctx context.Context, g *globals, way builder.Credentials) (reading, error) {
	if len(f.Bootstrap) == 0 {
		if f.User != "" || f.PasswordFile != "" || f.RemoteDir != "" {
			return nil, &usageError{errors.New("--sasl-user, --sasl-password-file and --remote-dir are for a cluster: name it in --cluster")}
		}
		c, err := g.connectBy(way, builder.Events{})
		return fromServer{c}, err
	}
	conns, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	return fromCluster{flussdirect.New(flussdirect.Config{Client: conns, Open: f.openStore}), conns}, nil
}

// dial connects to the cluster.
func (f *clusterFlags) dial(ctx context.Context) (*client.Client, error) {
	conf := client.Config{Bootstrap: f.Bootstrap}
	if (f.User == "") != (f.PasswordFile == "") {
		return nil, &usageError{errors.New("--sasl-user and --sasl-password-file belong together")}
	}
	for _, a := range f.Bootstrap {
		if err := checkAddress(a); err != nil {
			return nil, &usageError{fmt.Errorf("--cluster: %w", err)}
		}
	}
	if f.User != "" {
		if _, err := f.password(ctx); err != nil {
			return nil, &usageError{fmt.Errorf("--sasl-password-file: %w", err)}
		}
		conf.SASL = &client.PLAIN{User: f.User, Password: f.password}
	}
	conns, err := client.Dial(ctx, conf)
	if err != nil && f.User == "" && client.CodeOf(err) == client.CodeAuthentication {
		return nil, &hinted{&clusterError{err}, "does the cluster want a user? Name one in --sasl-user, with --sasl-password-file"}
	}
	if err != nil {
		return nil, &clusterError{err}
	}
	return conns, nil
}

// checkAddress refuses what no server can be reached at.
func checkAddress(a string) error {
	host, port, err := net.SplitHostPort(a)
	if err != nil || host == "" {
		return fmt.Errorf("%.100q is not host:port", a)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%.100q: %.20q is no port number", a, port)
	}
	return nil
}

// password reads the file anew for each connection.
func (f *clusterFlags) password(context.Context) (string, error) {
	b, err := os.ReadFile(f.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("password of %s: %w", f.User, err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

// openStore opens the store that a cluster keeps its snapshots in.
func (f *clusterFlags) openStore(ctx context.Context, root string) (flussdirect.Objects, error) {
	if f.RemoteDir != "" || strings.HasPrefix(root, "file:") {
		return flussdirect.Dir(f.RemoteDir)(ctx, root)
	}
	aws, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(f.Region), awsconfig.WithLogger(logging.Nop{}))
	if err != nil {
		return nil, fmt.Errorf("the AWS SDK's configuration: %w", err)
	}
	return s3dir.Open(s3dir.Config{Region: f.Region, Endpoint: f.Endpoint, PathStyle: f.PathStyle, Credentials: aws.Credentials})(ctx, root)
}

// clusterError is a cluster that cannot be used.
type clusterError struct{ err error }

func (e *clusterError) Error() string { return e.err.Error() }
func (e *clusterError) Unwrap() error { return e.err }

// ExitCode tells a cluster that is away from one that refuses.
func (e *clusterError) ExitCode() int {
	if client.CodeOf(e.err) == client.CodeAuthentication {
		return exitDenied
	}
	return exitUnavailable
}

// problemCode is the code of a server's or a cluster's refusal, "" for other errors.
func problemCode(err error) string {
	var refusal interface{ ProblemCode() string }
	if errors.As(err, &refusal) {
		return refusal.ProblemCode()
	}
	return ""
}

// notOffered says that what is read from has no such thing.
func notOffered(err error) bool {
	code := problemCode(err)
	return code == v1.CodeNotOffered || code == v1.CodeNotImplemented
}
