package env

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"
)

// cephPackages are what launchCephRGW needs, as Debian calls them.
const cephPackages = "radosgw ceph-mon ceph-osd ceph-mgr ceph-common"

// ceph is a cluster of one monitor, one manager, one OSD in memory and one gateway.
type ceph struct {
	s    *Server
	dir  string
	conf string
}

// launchCephRGW starts a cluster from the packages of the system, which it does not
// install: that needs root. Stop kills the daemons and waits for each, or a stray OSD
// would live on without its directory.
func launchCephRGW(ctx context.Context, _ string, o Options) (*Server, error) {
	if o.WebIdentity.Issuer != "" || o.DefaultDuration != 0 {
		return nil, errors.New("web identity and short sessions need SeaweedFS")
	}
	for _, program := range []string{"radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-mgr", "monmaptool"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %s is not installed; on Debian: apt-get install --no-install-recommends %s", ErrUnavailable, program, cephPackages)
		}
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	dir, err := tempDir(CephRGW)
	if err != nil {
		return nil, err
	}
	c := &ceph{s: newServer(CephRGW, ports[0]), dir: dir, conf: filepath.Join(dir, "ceph.conf")}
	c.s.RoleARN, c.s.base = "arn:aws:iam:::role/BulkWriter", dir // its roles have no account
	if err := c.start(ctx, ports); err != nil {
		return nil, errors.Join(err, c.s.Stop())
	}
	return c.s, nil
}

func (c *ceph) start(ctx context.Context, ports []int) error {
	fsid, monitors := uuid(), fmt.Sprintf("[v2:127.0.0.1:%d,v1:127.0.0.1:%d]", ports[1], ports[2])
	if err := os.WriteFile(c.conf, []byte(c.config(fsid, monitors)), 0o600); err != nil {
		return err
	}
	for _, sub := range []string{"mon", "mgr", "osd", "rgw", "mon/data", "mgr/data", "osd/data", "rgw/data"} {
		if err := os.Mkdir(filepath.Join(c.dir, sub), 0o700); err != nil {
			return err
		}
	}
	monmap := filepath.Join(c.dir, "monmap")
	if err := c.calls(ctx,
		[]string{"monmaptool", "--create", "--addv", "a", monitors, "--fsid", fsid, monmap},
		[]string{"ceph-mon", "-c", c.conf, "-i", "a", "--mkfs", "--monmap", monmap}); err != nil {
		return err
	}
	if _, err := c.daemon("mon", "ceph-mon", "-i", "a"); err != nil {
		return err
	}
	osd := uuid()
	if err := c.calls(ctx,
		[]string{"ceph", "-c", c.conf, "--connect-timeout", "30", "osd", "new", osd},
		[]string{"ceph-osd", "-c", c.conf, "-i", "0", "--mkfs", "--osd-uuid", osd}); err != nil {
		return err
	}
	for _, d := range [][]string{{"mgr", "ceph-mgr", "-i", "x"}, {"osd", "ceph-osd", "-i", "0"}} {
		if _, err := c.daemon(d[0], d[1], d[2:]...); err != nil {
			return err
		}
	}
	if err := c.users(ctx); err != nil {
		return err
	}
	p, err := c.daemon("rgw", "radosgw", "-n", "client.rgw")
	if err != nil {
		return err
	}
	return p.await(ctx, c.ready)
}

// ready is Server.ready, and that the role may be assumed for the shortest time.
func (c *ceph) ready(ctx context.Context) error {
	if err := c.s.ready(ctx); err != nil {
		return err
	}
	vendor := sts.New(sts.Options{Region: c.s.Region, BaseEndpoint: &c.s.Endpoint, Credentials: c.s.Vendor.Provider(), RetryMaxAttempts: 1})
	_, err := vendor.AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &c.s.RoleARN, RoleSessionName: aws.String("ready"), DurationSeconds: aws.Int32(900)})
	return err
}

// config is ceph.conf. Nothing is authenticated between the daemons, which listen on
// loopback; radosgw alone insists on encryption to the monitor, which needs keys,
// unless ms_mon_client_mode says otherwise. Without tcp_nodelay an answer takes 44 ms and one in twenty is
// cut off under the Go client.
func (c *ceph) config(fsid, monitors string) string {
	port := c.s.Endpoint[strings.LastIndexByte(c.s.Endpoint, ':')+1:]
	return fmt.Sprintf(`[global]
fsid = %s
mon_host = %s
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
run_dir = %[3]s
admin_socket =
log_file =
log_to_file = false
log_to_stderr = true
err_to_stderr = true
mon_cluster_log_file =
mon_data = %[3]s/mon/data
mgr_data = %[3]s/mgr/data
osd_data = %[3]s/osd/data
rgw_data = %[3]s/rgw/data
mon_data_avail_crit = 1
mon_data_avail_warn = 1
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 4
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mgr_initial_modules =
rgw_frontends = beast endpoint=127.0.0.1:%[4]s tcp_nodelay=1
rgw_sts_key = %[5]s
rgw_s3_auth_use_sts = true
rgw_crypt_require_ssl = false
`, fsid, monitors, c.dir, port, rand.Text()[:16])
}

// daemon starts one in its own directory, to be stopped with the server.
func (c *ceph) daemon(sub, program string, args ...string) (*process, error) {
	p, err := run(filepath.Join(c.dir, sub), nil, program, append([]string{"-f", "-c", c.conf}, args...)...)
	if err == nil {
		c.s.process, c.s.others = p, append(c.s.others, p)
	}
	return p, err
}

// calls runs commands one after the other.
func (c *ceph) calls(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := c.call(ctx, args...); err != nil {
			return err
		}
	}
	return nil
}

// call runs a command and returns what it printed. Its arguments hold keys, so they
// stay out of errors.
func (c *ceph) call(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = c.dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir}, time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", args[0], args[len(args)-1], err, tail(errs.Bytes(), 1000))
	}
	return out, nil
}

// users makes Admin, Vendor, and the role that Vendor may assume.
func (c *ceph) users(ctx context.Context) error {
	user := func(name string, k Keys) []string {
		return []string{"radosgw-admin", "-c", c.conf, "user", "create", "--uid=" + name, "--access-key=" + k.AccessKeyID, "--secret-key=" + k.SecretAccessKey.Reveal(), "--display-name=" + name}
	}
	trust := policy(doc{"Effect": "Allow", "Principal": doc{"AWS": []string{"arn:aws:iam:::user/vendor"}}, "Action": []string{"sts:AssumeRole"}})
	document := func(flag string, d doc) (string, error) {
		b, err := json.Marshal(d)
		return flag + "=" + string(b), err
	}
	assume, err := document("--assume-role-policy-doc", trust)
	if err != nil {
		return err
	}
	may, err := document("--policy-doc", policy(c.s.roleStatement()))
	if err != nil {
		return err
	}
	return c.calls(ctx, user("admin", c.s.Admin), user("vendor", c.s.Vendor),
		[]string{"radosgw-admin", "-c", c.conf, "role", "create", assume, "--role-name=BulkWriter"},
		[]string{"radosgw-admin", "-c", c.conf, "role-policy", "put", "--role-name=BulkWriter", may, "--policy-name=write"})
}

func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
