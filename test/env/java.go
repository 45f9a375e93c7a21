package env

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const mavenTimeout = 10 * time.Minute

// javaTool returns a program of the JDK: of JAVA_HOME, else of PATH.
func javaTool(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if p, err := exec.LookPath(filepath.Join(home, "bin", name)); err == nil {
			return p, nil
		}
	}
	p, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%w: a JDK of at least version 17 is needed: %w", ErrUnavailable, err)
	}
	return p, nil
}

// javaFlags are for every Java program here. Arrow needs the opened packages;
// without shared performance data a killed program leaves nothing in /tmp, and the
// native libraries it unpacks go to its own directory.
func javaFlags(dir, heap string) []string {
	flags := []string{
		"-Xmx" + heap, "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto", "-Djava.io.tmpdir=" + dir,
		"-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-Dorg.slf4j.simpleLogger.showShortLogName=true",
	}
	for _, pkg := range []string{"java.nio", "sun.nio.ch", "java.lang", "java.util", "java.util.concurrent", "java.time",
		"java.net", "java.io", "java.text", "java.lang.reflect"} {
		flags = append(flags, "--add-opens=java.base/"+pkg+"=ALL-UNNAMED")
	}
	return flags
}

// jar is a line of a file of pins.
type jar struct {
	dir    string // under the installation
	group  string
	name   string
	ver    string
	sha256 string
}

func (j jar) file() string { return j.name + "-" + j.ver + ".jar" }

func parseJars(list []byte) ([]jar, error) {
	var jars []jar
	for line := range strings.Lines(string(list)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		f := strings.Fields(line)
		var at []string
		if len(f) == 3 {
			at = strings.Split(f[1], ":")
		}
		if len(at) != 3 {
			return nil, fmt.Errorf("bad line of pins %q", line)
		}
		jars = append(jars, jar{f[0], at[0], at[1], at[2], f[2]})
	}
	return jars, nil
}

// installJars returns the directory with the jars of pins/name.txt, made on first use
// with Maven and the user's settings of it. It may be called by several processes.
func installJars(ctx context.Context, name string) (string, error) {
	list, err := pins.ReadFile("pins/" + name + ".txt")
	if err != nil {
		return "", err
	}
	jars, err := parseJars(list)
	if err != nil {
		return "", err
	}
	return cached(name, list, func(dir string) error { return mavenCopy(ctx, dir, jars) })
}

// mavenCopy fills dir. Version 2.10 of the plugin takes jars without reading their
// POMs; the parents of some of Fluss's are not published.
func mavenCopy(ctx context.Context, dir string, jars []jar) error {
	ctx, cancel := context.WithTimeout(ctx, mavenTimeout)
	defer cancel()
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	pom := filepath.Join(dir, "pom.xml")
	b, err := pomOf(jars)
	if err == nil {
		err = os.WriteFile(pom, b, 0o644)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", pom, "dependency:copy")
	if err := runInstaller(cmd, "mvn dependency:copy"); err != nil {
		return err
	}
	for _, j := range jars {
		if err := checkJar(filepath.Join(dir, j.dir, j.file()), j.sha256); err != nil {
			return err
		}
	}
	return nil
}

func checkJar(path, want string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
		return fmt.Errorf("%s: SHA-256 is %x, want %s", filepath.Base(path), sum, want)
	}
	return nil
}

func pomOf(jars []jar) ([]byte, error) {
	type item struct {
		Group   string `xml:"groupId"`
		Name    string `xml:"artifactId"`
		Version string `xml:"version"`
		Dir     string `xml:"outputDirectory"`
	}
	type plugin struct {
		Group   string `xml:"groupId"`
		Name    string `xml:"artifactId"`
		Version string `xml:"version"`
		Items   []item `xml:"configuration>artifactItems>artifactItem"`
	}
	var p struct {
		XMLName xml.Name `xml:"http://maven.apache.org/POM/4.0.0 project"`
		Model   string   `xml:"modelVersion"`
		Group   string   `xml:"groupId"`
		Name    string   `xml:"artifactId"`
		Version string   `xml:"version"`
		Kind    string   `xml:"packaging"`
		Plugin  plugin   `xml:"build>plugins>plugin"`
	}
	p.Model, p.Group, p.Name, p.Version, p.Kind = "4.0.0", "com.github.fluss-sluice", "jars", "1", "pom"
	p.Plugin = plugin{Group: "org.apache.maven.plugins", Name: "maven-dependency-plugin", Version: "2.10"}
	for _, j := range jars {
		p.Plugin.Items = append(p.Plugin.Items, item{j.group, j.name, j.ver, "${project.basedir}/" + j.dir})
	}
	return xml.Marshal(p)
}

// classPath is the class path of all jars in directories.
func classPath(dirs ...string) string {
	for i, d := range dirs {
		dirs[i] = filepath.Join(d, "*")
	}
	return strings.Join(dirs, string(os.PathListSeparator))
}

// CompileWithFluss compiles the Java files at the root of source against Fluss's
// client and returns the class path of the result; it is made once and kept in the
// cache. An error wraps ErrUnavailable when a JDK or the client is missing.
func CompileWithFluss(ctx context.Context, name string, source fs.FS) (string, error) {
	files, err := fs.Glob(source, "*.java")
	if err != nil {
		return "", err
	}
	javac, err := javaTool("javac")
	if err != nil {
		return "", err
	}
	jars, err := installJars(ctx, "fluss")
	if err != nil {
		return "", err
	}
	client := classPath(filepath.Join(jars, "client"))
	key := bytes.NewBufferString(jars + javac)
	texts := map[string][]byte{}
	for _, f := range files {
		if texts[f], err = fs.ReadFile(source, f); err != nil {
			return "", err
		}
		key.Write(texts[f])
	}
	dir, err := cached(name, key.Bytes(), func(dir string) error {
		args := []string{"-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", client, "-d", dir}
		for f, text := range texts {
			path := filepath.Join(dir, f)
			if err := os.WriteFile(path, text, 0o644); err != nil {
				return err
			}
			args = append(args, path)
		}
		if out, err := exec.CommandContext(ctx, javac, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("javac: %w: %s", err, tail(out, 4000))
		}
		return nil
	})
	return client + string(os.PathListSeparator) + dir, err
}

// JavaCommand returns a Java program that ends with this process; dir is its working
// and temporary directory and home. Its environment is that and PATH. Start it with
// StartOwned.
func JavaCommand(dir, heap, classPath, class string, flags []string, args ...string) (*exec.Cmd, error) {
	java, err := javaTool("java")
	if err != nil {
		return nil, err
	}
	all := append(javaFlags(dir, heap), flags...)
	cmd := exec.Command(java, append(append(all, "-cp", classPath, class), args...)...)
	cmd.Dir, cmd.Env = dir, cleanEnviron(dir)
	return cmd, nil
}

// StartOwned starts a command that the kernel ends with this process (on Linux). done
// is closed when it has ended and has been waited for.
func StartOwned(cmd *exec.Cmd) (done <-chan struct{}, err error) {
	done, _, err = startOwned(cmd)
	return done, err
}
