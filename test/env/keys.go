package env

import (
	"crypto/rand"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/fluss-sluice/sluice/session/credential"
)

// newKeys makes keys in the form of AWS's, which some clients insist on.
func newKeys() Keys {
	return Keys{
		AccessKeyID:     "AKIA" + rand.Text()[:16],
		SecretAccessKey: credential.New((rand.Text() + rand.Text())[:40]),
	}
}

// Provider returns the keys as the AWS SDK wants them.
func (k Keys) Provider() aws.CredentialsProvider {
	return credentials.NewStaticCredentialsProvider(k.AccessKeyID, k.SecretAccessKey.Reveal(), "")
}

// S3 is an SDK client of the server with these credentials, for set-up and checks
// beside the code under test.
func (s *Server) S3(p aws.CredentialsProvider) *s3.Client {
	return s3.New(s3.Options{Region: s.Region, BaseEndpoint: &s.Endpoint, UsePathStyle: true, Credentials: p, Logger: nil})
}
