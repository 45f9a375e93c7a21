package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluss-sluice/sluice/api/client"
	v1 "github.com/fluss-sluice/sluice/api/v1"
)

// formatProcess is read by AWS SDKs.
const formatProcess = "process"

// credsFormats are the formats of `sluice creds`, in the order of its help.
var credsFormats = []string{"json", formatProcess, "aws-config", "env", "duckdb", "spark", "rclone", "iceberg"}

// credsPrinter prints keys in one format.
type credsPrinter struct {
	print  func(w io.Writer, c *client.Credentials, again string) error
	one    bool // it has room for one set of keys
	secret bool // it holds keys
}

var credsPrinters = map[string]credsPrinter{
	"json":        {print: printKeysJSON, secret: true},
	formatProcess: {print: printProcess, one: true, secret: true},
	"aws-config":  {print: printAWSConfig, one: true},
	"env":         {print: printEnv, one: true, secret: true},
	"duckdb":      {print: printDuckDB, secret: true},
	"spark":       {print: printSpark, one: true, secret: true},
	"rclone":      {print: printRclone, secret: true},
	"iceberg":     {print: printIceberg, secret: true},
}

// keysDocument is v1.Credentials as far as it concerns a client.
type keysDocument struct {
	Mode        string    `json:"mode"`
	SessionID   string    `json:"session_id,omitempty"`
	Scope       string    `json:"scope"`
	Region      string    `json:"region"`
	Endpoint    string    `json:"endpoint,omitempty"`
	PathStyle   bool      `json:"path_style"`
	ExpiresAt   time.Time `json:"expires_at"`
	RefreshAt   time.Time `json:"refresh_at"`
	LiveUntil   time.Time `json:"live_until"`
	Bound       string    `json:"bound"`
	DecisionID  string    `json:"decision_id"`
	Credentials []v1.Keys `json:"credentials"`
}

func printKeysJSON(w io.Writer, c *client.Credentials, _ string) error {
	doc := keysDocument{
		Mode: "sts", SessionID: c.SessionID, Scope: c.Scope, Region: c.Region, Endpoint: c.Endpoint, PathStyle: c.PathStyle,
		ExpiresAt: c.ExpiresAt.UTC(), RefreshAt: c.RefreshAt.UTC(), LiveUntil: c.LiveUntil.UTC(), Bound: c.Bound, DecisionID: c.DecisionID,
	}
	for _, k := range c.Keys {
		doc.Credentials = append(doc.Credentials, v1.Keys{
			Locations: k.Locations, AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), SessionToken: k.SessionToken.Reveal(),
			ExpiresAt: k.ExpiresAt.UTC(), SessionName: k.SessionName,
		})
	}
	return encodeJSON(w, doc)
}

// printProcess prints what credential_process must: SDKs run it again before the
// expiration.
func printProcess(w io.Writer, c *client.Credentials, _ string) error {
	k := c.Keys[0]
	return encodeJSON(w, v1.AWSCredentials{
		Version: 1, AccessKeyID: k.AccessKeyID, SecretAccessKey: k.SecretAccessKey.Reveal(), SessionToken: k.SessionToken.Reveal(),
		Expiration: k.ExpiresAt.UTC().Truncate(time.Second),
	})
}

// printAWSConfig prints a profile without keys in it.
func printAWSConfig(w io.Writer, c *client.Credentials, again string) error {
	lines := []string{
		"# opens " + placesText(c.Keys[0].Locations) + "; use it with --profile sluice or AWS_PROFILE=sluice",
		"[profile sluice]", "credential_process = " + again, "region = " + c.Region,
	}
	if c.Endpoint != "" {
		lines = append(lines, "endpoint_url = "+c.Endpoint)
	}
	if c.PathStyle {
		lines = append(lines, "s3 =", "  addressing_style = path")
	}
	return printLines(w, lines)
}

func printLines(w io.Writer, lines []string) error {
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return err
}

// expiry is a line of comment about how long keys are good, and what they open.
func expiry(mark string, k client.Keys) string {
	return fmt.Sprintf("%s until %s: %s", mark, k.ExpiresAt.UTC().Format(time.RFC3339), placesText(k.Locations))
}

func printEnv(w io.Writer, c *client.Credentials, _ string) error {
	k := c.Keys[0]
	vars := [][2]string{
		{"AWS_ACCESS_KEY_ID", k.AccessKeyID}, {"AWS_SECRET_ACCESS_KEY", k.SecretAccessKey.Reveal()}, {"AWS_SESSION_TOKEN", k.SessionToken.Reveal()},
		{"AWS_CREDENTIAL_EXPIRATION", k.ExpiresAt.UTC().Format(time.RFC3339)}, {"AWS_REGION", c.Region}, {"AWS_DEFAULT_REGION", c.Region},
	}
	if c.Endpoint != "" {
		vars = append(vars, [2]string{"AWS_ENDPOINT_URL_S3", c.Endpoint})
	}
	lines := []string{expiry("#", k)}
	if c.PathStyle {
		lines = append(lines, "# the bucket stands in the path; SDKs have no variable for that: addressing_style = path in the profile")
	}
	for _, v := range vars {
		lines = append(lines, "export "+v[0]+"="+shellQuote(v[1]))
	}
	return printLines(w, lines)
}

// printDuckDB makes a secret for each location, because DuckDB chooses by SCOPE.
func printDuckDB(w io.Writer, c *client.Credentials, _ string) error {
	host, tls, err := hostOf(c.Endpoint)
	if err != nil {
		return err
	}
	var lines []string
	n := 0
	for _, k := range c.Keys {
		lines = append(lines, expiry("--", k))
		for _, l := range k.Locations {
			options := [][2]string{
				{"KEY_ID", k.AccessKeyID}, {"SECRET", k.SecretAccessKey.Reveal()}, {"SESSION_TOKEN", k.SessionToken.Reveal()}, {"REGION", c.Region},
			}
			if host != "" {
				options = append(options, [2]string{"ENDPOINT", host})
			}
			options = append(options, [2]string{"URL_STYLE", map[bool]string{true: "path", false: "vhost"}[c.PathStyle]}, [2]string{"SCOPE", placeText(l)})
			line := fmt.Sprintf("CREATE OR REPLACE TEMPORARY SECRET sluice_%d (TYPE s3, PROVIDER config, USE_SSL %v", n, tls)
			for _, o := range options {
				line += ", " + o[0] + " " + sqlQuote(o[1])
			}
			lines, n = append(lines, line+");"), n+1
		}
	}
	return printLines(w, lines)
}

func sqlQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// hostOf takes an endpoint apart; "" is the provider's own.
func hostOf(endpoint string) (host string, tls bool, err error) {
	if endpoint == "" {
		return "", true, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Path != "" && u.Path != "/" {
		return "", false, errors.New("the endpoint of the object store is no plain host: this format cannot hold it")
	}
	return u.Host, u.Scheme == "https", nil
}

// printSpark configures S3A for the bucket that the keys are of.
func printSpark(w io.Writer, c *client.Credentials, _ string) error {
	k := c.Keys[0]
	bucket, err := bucketOf(k.Locations)
	if err != nil {
		return err
	}
	_, tls, err := hostOf(c.Endpoint)
	if err != nil {
		return err
	}
	options := [][2]string{
		{"aws.credentials.provider", "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"},
		{"access.key", k.AccessKeyID}, {"secret.key", k.SecretAccessKey.Reveal()}, {"session.token", k.SessionToken.Reveal()},
		{"endpoint.region", c.Region}, {"path.style.access", strconv.FormatBool(c.PathStyle)}, {"connection.ssl.enabled", strconv.FormatBool(tls)},
	}
	if c.Endpoint != "" {
		options = append(options, [2]string{"endpoint", c.Endpoint})
	}
	lines := []string{expiry("#", k)}
	for _, o := range options {
		lines = append(lines, "spark.hadoop.fs.s3a.bucket."+bucket+"."+o[0]+" "+strings.ReplaceAll(o[1], `\`, `\\`))
	}
	return printLines(w, lines)
}

// bucketOf is the one bucket of the store that locations are of.
func bucketOf(locations []v1.KeyLocation) (string, error) {
	var buckets []string
	for _, l := range locations {
		bucket, _, _ := strings.Cut(strings.TrimPrefix(l.URI, "s3://"), "/")
		buckets = append(buckets, bucket)
	}
	slices.Sort(buckets)
	if buckets = slices.Compact(buckets); len(buckets) != 1 {
		return "", fmt.Errorf("the keys are of %d buckets of the object store: this format has room for one", len(buckets))
	}
	return buckets[0], nil
}

func printRclone(w io.Writer, c *client.Credentials, _ string) error {
	provider := "AWS"
	if c.Endpoint != "" {
		provider = "Other"
	}
	var lines []string
	for i, k := range c.Keys {
		name := "sluice"
		if i > 0 {
			name += strconv.Itoa(i + 1)
		}
		lines = append(lines, expiry("#", k), "["+name+"]", "type = s3", "provider = "+provider, "env_auth = false",
			"access_key_id = "+k.AccessKeyID, "secret_access_key = "+k.SecretAccessKey.Reveal(), "session_token = "+k.SessionToken.Reveal(),
			"region = "+c.Region)
		if c.Endpoint != "" {
			lines = append(lines, "endpoint = "+c.Endpoint)
		}
		// The keys may look at no bucket and create none.
		lines = append(lines, fmt.Sprintf("force_path_style = %v", c.PathStyle), "no_check_bucket = true")
	}
	return printLines(w, lines)
}

func printIceberg(w io.Writer, c *client.Credentials, _ string) error {
	doc := v1.StorageCredentials{StorageCredentials: []v1.StorageCredential{}}
	for _, k := range c.Keys {
		for _, l := range k.Locations {
			config := map[string]string{
				"s3.access-key-id": k.AccessKeyID, "s3.secret-access-key": k.SecretAccessKey.Reveal(), "s3.session-token": k.SessionToken.Reveal(),
				"s3.session-token-expires-at-ms": strconv.FormatInt(k.ExpiresAt.UnixMilli(), 10),
				"client.region":                  c.Region, "s3.path-style-access": strconv.FormatBool(c.PathStyle),
			}
			if c.Endpoint != "" {
				config["s3.endpoint"] = c.Endpoint
			}
			doc.StorageCredentials = append(doc.StorageCredentials, v1.StorageCredential{Prefix: placeText(l), Config: config})
		}
	}
	return encodeJSON(w, doc)
}
