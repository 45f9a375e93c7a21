package flusspb

import (
	"bytes"
	"context"
	"flag"
	"os"
	"testing"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/linker"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

var update = flag.Bool("update", false, "write fluss.pb.go anew")

const (
	protoFile = "fluss.proto"
	goFile    = "fluss.pb.go"
)

func TestGeneratedCodeIsThatOfTheProtoFile(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile(goFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(goFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what %s generates: run go test ./fluss/client/flusspb -update", goFile, protoFile)
	}
}

// generate does what protoc with protoc-gen-go does, without either.
func generate(t *testing.T) []byte {
	t.Helper()
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), protoFile)
	if err != nil {
		t.Fatal(err)
	}
	descriptor := protoutil.ProtoFromFileDescriptor(files[0].(linker.Result))
	plugin, err := protogen.Options{}.New(&pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{protoFile},
		ProtoFile:      []*descriptorpb.FileDescriptorProto{descriptor},
		Parameter:      proto.String("paths=source_relative"),
	})
	if err != nil {
		t.Fatal(err)
	}
	internal_gengo.GenerateFile(plugin, plugin.Files[0])
	answer := plugin.Response()
	if answer.Error != nil {
		t.Fatal(answer.GetError())
	}
	return []byte(answer.File[0].GetContent())
}
