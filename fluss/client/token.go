package client

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/fluss-sluice/sluice/fluss/client/flusspb"
)

// FileSystemToken opens the cluster's remote directory with the servers' own rights:
// it reads, writes and deletes everything there. Released clusters hand it to anyone.
// It prints without its content.
type FileSystemToken struct {
	Scheme  string            // of the file system, for example "s3"
	Expires time.Time         // zero when it does not
	Info    map[string]string // region, endpoint and the like

	token *[]byte // behind a pointer, because fmt prints unexported fields
}

// Reveal returns the token, JSON for S3-like file systems and empty for local ones.
func (t FileSystemToken) Reveal() []byte {
	if t.token == nil {
		return nil
	}
	return *t.token
}

// Format implements fmt.Formatter without the token.
func (t FileSystemToken) Format(f fmt.State, _ rune) {
	io.WriteString(f, "token of "+t.Scheme+" [redacted]")
}

// FileSystemToken asks for the cluster's own access to its remote directory.
func (c *Client) FileSystemToken(ctx context.Context) (FileSystemToken, error) {
	var resp flusspb.GetFileSystemSecurityTokenResponse
	if err := c.fromAny(ctx, flusspb.APIGetFileSystemSecurityToken, &flusspb.GetFileSystemSecurityTokenRequest{}, &resp); err != nil {
		return FileSystemToken{}, err
	}
	token := resp.GetToken()
	out := FileSystemToken{Scheme: resp.GetSchema(), Info: map[string]string{}, token: &token}
	if resp.ExpirationTime != nil {
		out.Expires = time.UnixMilli(resp.GetExpirationTime())
	}
	for _, kv := range resp.GetAdditionInfo() {
		out.Info[kv.GetKey()] = kv.GetValue()
	}
	return out, nil
}
