package env

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/fluss-sluice/sluice/session/credential"
)

// launchMiniStack starts MiniStack under hypercorn: its own command would listen on
// every address. Everything is in memory.
func launchMiniStack(ctx context.Context, install string, o Options) (*Server, error) {
	if o.WebIdentity.Issuer != "" || o.DefaultDuration != 0 {
		return nil, errors.New("web identity and short sessions need SeaweedFS: MiniStack checks neither")
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	s := newServer(MiniStack, ports[0])
	dir, err := tempDir(MiniStack)
	if err != nil {
		return nil, err
	}
	s.process, err = run(dir, []string{
		"PYTHONPATH=" + install, "AUTH=true", "LOG_LEVEL=WARNING", "MINISTACK_REGION=" + Region, "MINISTACK_ACCOUNT_ID=" + Account,
		fmt.Sprintf("GATEWAY_PORT=%d", ports[0]), "MINISTACK_HOST=127.0.0.1", "DOCKER_HOST=unix://" + dir + "/none", "SFTP_ENABLED=0",
		// The root user's keys.
		"AWS_ACCESS_KEY_ID=" + s.Admin.AccessKeyID, "AWS_SECRET_ACCESS_KEY=" + s.Admin.SecretAccessKey.Reveal(),
	}, "python3", "-m", "hypercorn", "ministack.app:app", "--workers", "0", "--bind", fmt.Sprintf("127.0.0.1:%d", ports[0]))
	if err != nil {
		return nil, err
	}
	err = s.process.await(ctx, s.listening)
	if err == nil {
		err = s.setUpIAM(ctx)
	}
	if err == nil {
		err = s.process.await(ctx, s.ready)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Server) listening(ctx context.Context) error {
	_, err := s.iam(ctx, "ListUsers", nil)
	return err
}

// setUpIAM makes the user "vendor" and the roles.
func (s *Server) setUpIAM(ctx context.Context) error {
	text := func(d doc) string {
		b, err := json.Marshal(d)
		if err != nil {
			panic(err) // literals
		}
		return string(b)
	}
	vendor := "arn:aws:iam::" + Account + ":user/vendor"
	assume := policy(doc{"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"})
	trust := policy(doc{"Effect": "Allow", "Principal": doc{"AWS": vendor}, "Action": "sts:AssumeRole"})
	role := s.RoleARN[strings.LastIndexByte(s.RoleARN, '/')+1:]
	for _, c := range []struct {
		action string
		params map[string]string
	}{
		{"CreateUser", map[string]string{"UserName": "vendor"}},
		{"PutUserPolicy", map[string]string{"UserName": "vendor", "PolicyName": "assume", "PolicyDocument": text(assume)}},
		{"CreateRole", map[string]string{"RoleName": role, "AssumeRolePolicyDocument": text(trust), "MaxSessionDuration": "3600"}},
		{"PutRolePolicy", map[string]string{"RoleName": role, "PolicyName": "write", "PolicyDocument": text(policy(s.roleStatement()))}},
	} {
		if _, err := s.iam(ctx, c.action, c.params); err != nil {
			return err
		}
	}
	b, err := s.iam(ctx, "CreateAccessKey", map[string]string{"UserName": "vendor"})
	if err != nil {
		return err
	}
	var answer struct {
		Key struct {
			ID     string `xml:"AccessKeyId"`
			Secret string `xml:"SecretAccessKey"`
		} `xml:"CreateAccessKeyResult>AccessKey"`
	}
	if err := xml.Unmarshal(b, &answer); err != nil || answer.Key.Secret == "" {
		return fmt.Errorf("CreateAccessKey: no key in the answer: %w", err)
	}
	s.Vendor = Keys{AccessKeyID: answer.Key.ID, SecretAccessKey: credential.New(answer.Key.Secret)}
	return nil
}

// iam makes one call of the IAM API as Admin. The SDK's IAM client would be a
// dependency for five calls.
func (s *Server) iam(ctx context.Context, action string, params map[string]string) ([]byte, error) {
	form := url.Values{"Action": {action}, "Version": {"2010-05-08"}}
	for k, v := range params {
		form.Set(k, v)
	}
	body := form.Encode()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Endpoint+"/", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	keys, err := s.Admin.Provider().Retrieve(ctx)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(body))
	if err := v4.NewSigner().SignHTTP(ctx, keys, req, hex.EncodeToString(sum[:]), "iam", s.Region, time.Now()); err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", action, resp.Status, tail(b, 500))
	}
	return b, err
}
