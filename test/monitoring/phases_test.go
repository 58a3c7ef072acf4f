package monitoring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// zoned is what the Machines ask their provider for that the test creates.
const zoned = `{"apiVersion": "machine.openshift.io/v1beta1", "kind": "AWSMachineProviderConfig", "instanceType": "m5.2xlarge", "placement": {"region": "sandbox", "availabilityZone": "zone-a"}}`

// setManifest is a set that adopts the Machines and, with strategy OnDelete, leaves them as they are.
func setManifest(instanceType string) string {
	return fmt.Sprintf(`apiVersion: machine.openshift.io/v1
kind: ControlPlaneMachineSet
metadata: {name: cluster, namespace: openshift-machine-api}
spec:
  state: Active
  replicas: 3
  strategy: {type: OnDelete}
  selector: {matchLabels: {machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
  template:
    machineType: machines_v1beta1_machine_openshift_io
    machines_v1beta1_machine_openshift_io:
      metadata: {labels: {machine.openshift.io/cluster-api-cluster: sandbox, machine.openshift.io/cluster-api-machine-role: master, machine.openshift.io/cluster-api-machine-type: master}}
      spec: {providerSpec: {value: {apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: %s}}}
`, instanceType)
}

// zonedSet is one of two failure domains.
func zonedSet() string {
	const domains = `failureDomains: {platform: AWS, aws: [{placement: {availabilityZone: zone-a}}, {placement: {availabilityZone: zone-b}}]}`
	return strings.NewReplacer("{apiVersion: process.holdfast.dev/v1, kind: ProcessMachineProviderSpec, instanceType: zoned}", zoned,
		"      metadata: {labels", "      "+domains+"\n      metadata: {labels").Replace(setManifest("zoned"))
}

// installs ends the installation: until then etcd has the installer's member, too.
func (c *cluster) installs(t *testing.T) {
	t.Helper()
	c.fires(t, "HoldfastBootstrapMemberStays")
	c.must(t, admin, "", "create", "configmap", "bootstrap", "--namespace=kube-system", "--from-literal=status=complete")
	eventually(t, "three vote", func() error { return c.nonempty(`sum(holdfast_etcd_members{role="voter"}) == 3`) })
}

// keepsSet has a set keep the Machines for a while. First somebody else keeps one of them, then the set has no capacity for more.
func (c *cluster) keepsSet(t *testing.T) {
	t.Helper()
	c.must(t, alice, "", "create", "configmap", "keeper")
	keeper := c.must(t, alice, "", "get", "configmap", "keeper", "-o", "jsonpath={.metadata.uid}")
	owner := `{"metadata":{"ownerReferences":%s}}`
	c.must(t, alice, "", "patch", "machine", "master-2", "--type=merge", "-p", fmt.Sprintf(owner, `[{"apiVersion":"v1","kind":"ConfigMap","name":"keeper","controller":true,"uid":"`+keeper+`"}]`))
	c.must(t, alice, setManifest("no-capacity.large"), "create", "-f", "-")
	c.fires(t, "HoldfastSetNeedsAttention")
	c.must(t, alice, "", "patch", "machine", "master-2", "--type=merge", "-p", fmt.Sprintf(owner, "null"))
	for _, is := range []string{
		`holdfast_machineset_machines{state="owned"} == 3`, "holdfast_machineset_replicas == 3", "holdfast_machineset_uneven == 0",
		`count_over_time(holdfast_machineset_note{reason="DeleteToReplace"}[10s]) >= 5`, `sum(holdfast_machineset_actions_total{result="done"}) >= 4`,
	} {
		eventually(t, is, func() error { return c.nonempty(is) })
	}
	c.must(t, alice, "", "scale", "controlplanemachineset", "cluster", "--replicas=5")
	c.fires(t, "HoldfastSetStuck")
	c.must(t, alice, "", "scale", "controlplanemachineset", "cluster", "--replicas=3")
	eventually(t, "the Machine that got no instance is gone", func() error { return c.nonempty(`holdfast_machineset_machines{state="owned"} == 3`) })
	c.must(t, alice, "", "delete", "controlplanemachineset", "cluster")
	eventually(t, "no set is told of any more", func() error { return c.nonempty("absent(holdfast_machineset_machines)") })
}

// guardsTooLittle has somebody lower the quorum guard's budget, which Holdfast may not put right for a while: the replacement of master-0
// has caught up, and is not promoted.
func (c *cluster) guardsTooLittle(t *testing.T) {
	t.Helper()
	const etcd = "openshift-etcd"
	giveBack := c.takeRight(t, "role/holdfast-quorum-guard", etcd, "update", "poddisruptionbudgets/holdfast-quorum-guard")
	c.must(t, admin, "", "patch", "poddisruptionbudget", "holdfast-quorum-guard", "--namespace="+etcd, "--type=merge", "-p", `{"spec":{"minAvailable":0}}`)
	c.fires(t, "HoldfastQuorumGuardMismatch")
	c.needs(t, "ActionFails")
	c.replacement(t, "master-0", "master-3")
	c.fires(t, "HoldfastLearnerNotPromoted")
	c.fires(t, "HoldfastReplacementStuck")
	giveBack()
}

// losesGuardPod has somebody delete a pod of the quorum guard, which Holdfast may not make again for a while: there are fewer pods than
// members, and the budget is as it should be.
func (c *cluster) losesGuardPod(t *testing.T) {
	t.Helper()
	const etcd = "openshift-etcd"
	atRest := `holdfast_quorum_guard_pods == 3 and holdfast_quorum_guard_pods_ready == 3 and holdfast_quorum_guard_pods_wanted == 3 and holdfast_quorum_guard_min_available == 2`
	eventually(t, "three guard pods, and a budget for them", func() error { return c.nonempty(atRest) })
	c.over(t, "HoldfastQuorumGuardMismatch")
	giveBack := c.takeRight(t, "role/holdfast-quorum-guard", etcd, "create", "pods")
	c.must(t, alice, "", "delete", "pod", "holdfast-quorum-guard-master-1", "--namespace="+etcd, "--wait=false")
	c.fires(t, "HoldfastQuorumGuardMismatch")
	is := `holdfast_quorum_guard_pods == 2 and holdfast_quorum_guard_pods_wanted == 3 and holdfast_quorum_guard_min_available == 2`
	if err := c.nonempty(is); err != nil {
		t.Errorf("the alert fires, and not because one of three guard pods is missing: %v", err)
	}
	c.needs(t, "QuorumGuardPodMissing")
	giveBack()
	eventually(t, "the guard pod is back", func() error { return c.nonempty(atRest) })
	c.over(t, "HoldfastQuorumGuardMismatch")
	c.over(t, "HoldfastNeedsAttention")
}

// operatorGuard is cluster-etcd-operator's quorum guard, as that operator writes it.
const operatorGuard = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: etcd-guard-pdb, namespace: openshift-etcd}
spec: {minAvailable: 2, selector: {matchLabels: {app: guard}}}
`

func operatorGuardPod(node string) string {
	return `---
apiVersion: v1
kind: Pod
metadata: {name: etcd-guard-` + node + `, namespace: openshift-etcd, labels: {app: guard}}
spec: {nodeName: ` + node + `, containers: [{name: guard, image: guard}]}
`
}

// TestGuardMode: beside cluster-etcd-operator its quorum guard is compared with etcd's members.
func TestGuardMode(t *testing.T) {
	const etcd, alert = "--namespace=openshift-etcd", "HoldfastQuorumGuardMismatch"
	c := startCluster(t, "--mode=guard")
	eventually(t, "three vote", func() error {
		return c.nonempty(`sum(holdfast_etcd_members{role="voter"}) == 3 and absent(holdfast_quorum_guard_pods)`)
	})
	c.must(t, admin, operatorGuard+operatorGuardPod("master-0")+operatorGuardPod("master-1")+operatorGuardPod("master-2"), "create", etcd, "-f", "-")
	atRest := `holdfast_quorum_guard_pods == 3 and holdfast_quorum_guard_pods_wanted == 3 and holdfast_quorum_guard_min_available == 2`
	eventually(t, "three guard pods, and a budget for them", func() error { return c.nonempty(atRest) })
	c.must(t, admin, "", "delete", "pod", "etcd-guard-master-1", etcd, "--force", "--grace-period=0", "--wait=false")
	c.fires(t, alert)
	if err := c.nonempty(`holdfast_quorum_guard_pods == 2 and holdfast_quorum_guard_pods_wanted == 3`); err != nil {
		t.Errorf("the alert fires, and not because one of three guard pods is missing: %v", err)
	}
	c.needs(t, "QuorumGuardPodMissing")
	c.must(t, admin, operatorGuardPod("master-1"), "create", etcd, "-f", "-")
	c.over(t, alert)
	c.must(t, admin, "", "patch", "poddisruptionbudget", "etcd-guard-pdb", etcd, "--type=merge", "-p", `{"spec":{"minAvailable":1}}`)
	c.fires(t, alert)
	c.needs(t, "QuorumGuardTooSmall")
	c.must(t, admin, "", "delete", "poddisruptionbudget", "etcd-guard-pdb", etcd)
	c.needs(t, "QuorumGuardAbsent")
}

// needsPerson has HoldfastNeedsAttention fire for reasons that are made and undone in seconds, one after the other, while nothing else is
// done. Other parts of the test have it fire for others.
func (c *cluster) needsPerson(t *testing.T) {
	t.Helper()
	const etcd, installConfig = "openshift-etcd", "configmap/cluster-config-v1"
	var giveBack func()
	replicas := func(config string) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"data": map[string]string{"install-config": config}})
		if err != nil {
			t.Fatal(err)
		}
		c.must(t, admin, "", "patch", installConfig, "--namespace=kube-system", "--type=merge", "-p", string(patch))
	}
	before := c.must(t, admin, "", "get", installConfig, "--namespace=kube-system", "-o", "jsonpath={.data.install-config}")
	for _, part := range []struct {
		reason   string
		do, undo func()
	}{
		{"LockForeign", func() { c.mustEtcdctl(t, "put /holdfast/membership/0 somebody") }, func() { c.mustEtcdctl(t, "del /holdfast/membership/0") }},
		{"DesiredReplicasUnknown", func() {
			replicas("{}")
			c.must(t, admin, "", "delete", "configmap", "holdfast-members", "--namespace="+namespace) // which has the number on record
		}, func() { replicas(before) }},
		{"EtcdOperatorPresent", func() {
			c.must(t, admin, `{"apiVersion": "config.openshift.io/v1", "kind": "ClusterOperator", "metadata": {"name": "etcd"}, "spec": {}}`, "create", "-f", "-")
		}, func() { c.must(t, admin, "", "delete", "clusteroperator", "etcd") }},
		{"ClusterUnreadable", func() { giveBack = c.takeRight(t, "clusterrole/holdfast", namespace, "list", "nodes") }, func() { giveBack() }},
		{"QuorumGuardOthersPod", func() { // as Holdfast: the policies let nobody else
			c.must(t, holdfast, `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "`+etcd+`", "labels": {"app.kubernetes.io/name": "holdfast-quorum-guard"}},
				"spec": {"containers": [{"name": "pause", "image": "pause"}]}}`, "create", "--namespace="+etcd, "-f", "-")
		}, func() { c.must(t, admin, "", "delete", "pod", "other", "--namespace="+etcd) }},
		{"MachineWithoutNode", func() {
			c.must(t, alice, `{"apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "metadata": {"name": "broken", "namespace": "`+namespace+`", "labels":
				{"machine.openshift.io/cluster-api-cluster": "sandbox", "machine.openshift.io/cluster-api-machine-role": "master", "machine.openshift.io/cluster-api-machine-type": "master"}},
				"spec": {"providerSpec": {"value": {"apiVersion": "process.holdfast.dev/v1", "kind": "ProcessMachineProviderSpec"}}}}`, "create", "-f", "-")
		}, func() { c.must(t, alice, "", "delete", "machine", "broken") }},
	} {
		part.do()
		c.needs(t, part.reason)
		part.undo()
		c.over(t, "HoldfastNeedsAttention")
	}
}

// uneven has two of three Machines in one of two failure domains.
func (c *cluster) uneven(t *testing.T) {
	t.Helper()
	c.replacement(t, "master-2", "master-4")
	eventually(t, "master-4 votes", func() error { return c.nonempty(`sum(holdfast_etcd_members{role="voter", health="healthy"}) == 3`) })
	c.must(t, alice, zonedSet(), "create", "-f", "-")
	c.fires(t, "HoldfastSetUneven")
	c.must(t, alice, "", "delete", "controlplanemachineset", "cluster")
}

// runsOutOfSpace has etcd take itself to be full. Its HTTP gateway can raise the alarm; etcdctl only ends it.
func (c *cluster) runsOutOfSpace(t *testing.T) {
	t.Helper()
	id, err := strconv.ParseUint(c.memberID(t, "master-2"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	env := func(name string) string {
		out, err := c.shell(`printf %s "$` + name + `"`)
		if err != nil || out == "" {
			t.Fatalf("%s is %q: %v", name, out, err)
		}
		return out
	}
	pair, err := tls.LoadX509KeyPair(env("ETCDCTL_CERT"), env("ETCDCTL_KEY"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(env("ETCDCTL_CACERT"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("etcd's CA: %v", err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}}
	defer client.CloseIdleConnections()
	endpoint, _, _ := strings.Cut(env("ETCDCTL_ENDPOINTS"), ",")
	body := fmt.Sprintf(`{"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "%d"}`, id)
	response, err := client.Post(endpoint+"/v3/maintenance/alarm", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if err = errors.Join(err, response.Body.Close()); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("etcd's alarm: %s: %s: %v", response.Status, text, err)
	}
	c.fires(t, "HoldfastEtcdAlarm")
	c.mustEtcdctl(t, "alarm disarm")
	eventually(t, "no alarm", func() error { return c.nonempty("sum(holdfast_etcd_alarms) == 0 or absent(holdfast_etcd_alarms)") })
}

// hangs has Holdfast hang and then start again, in a place where nothing is as it should be: it can write no audit log, its certificate
// is about to expire, and the API server, which has lost its registration, does not reach it.
func (c *cluster) hangs(t *testing.T) {
	t.Helper()
	log := filepath.Join(c.dir, "logs", "holdfast-audit.log")
	certificates := filepath.Join(c.dir, "pki", "holdfast-webhook")
	pid, args := c.holdfast(t)
	if err := errors.Join(syscall.Kill(pid, syscall.SIGSTOP), os.Rename(log, log+".before"), os.Symlink("/dev/full", log)); err != nil {
		t.Fatal(err)
	}
	c.fires(t, "HoldfastNoneElected")
	c.fires(t, "HoldfastNotReadingEtcd")
	c.lacksCertificate(t, args)
	c.webhooks.cut()
	c.must(t, admin, "", "delete", "validatingwebhookconfiguration", "holdfast", "--ignore-not-found")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	certifyFor(t, certificates, time.Hour)
	c.fires(t, "HoldfastWebhookCertificateExpires")
	c.fires(t, "HoldfastRegistrationNotEnforced")
	c.fires(t, "HoldfastAuditRecordsDropped")
}

// lacksCertificate runs another Holdfast beside, which makes its certificate itself and may not keep its CA: it has no right to Secrets in the namespace that it is told.
func (c *cluster) lacksCertificate(t *testing.T, args []string) {
	t.Helper()
	webhooks, probes := address(t), address(t)
	host, port, err := net.SplitHostPort(webhooks)
	if err != nil {
		t.Fatal(err)
	}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return strings.HasPrefix(arg, "--webhook-cert-dir=") || strings.HasPrefix(arg, "--audit-log-path=")
	})
	args = append(args, "--mode=guard", "--metrics-bind-address="+c.beside, "--health-probe-bind-address="+probes, "--webhook-host="+host, "--webhook-port="+port,
		"--webhook-cert-source=self-signed", "--leader-elect-namespace=kube-system")
	command := exec.Command(args[0], args[1:]...)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := command.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = command.Wait() // it was killed
	}()
	c.fires(t, "HoldfastNoWebhookCertificate")
}

// holdfast is the process ID of the sandbox's Holdfast, and its command line.
func (c *cluster) holdfast(t *testing.T) (pid int, args []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		if err == nil && filepath.Base(args[0]) == "holdfast" && slices.Contains(args, "--metrics-bind-address="+c.metrics) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				return pid, args
			}
		}
	}
	t.Fatal("no Holdfast runs")
	return 0, nil
}

// certifyFor writes a certificate for webhooks, which is its own CA.
func certifyFor(t *testing.T, dir string, life time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(life), DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyRaw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var certificate, private bytes.Buffer
	if err := errors.Join(pem.Encode(&certificate, &pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.Encode(&private, &pem.Block{Type: "PRIVATE KEY", Bytes: keyRaw}),
		os.WriteFile(filepath.Join(dir, "ca.crt"), certificate.Bytes(), 0o600), os.WriteFile(filepath.Join(dir, "tls.key"), private.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, "tls.crt"), certificate.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// fired are the alerts that have fired since then.
func (c *cluster) fired(t *testing.T, since time.Time) (alerted []string) {
	t.Helper()
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	expr := fmt.Sprintf(`count by (alertname) (max_over_time(ALERTS{alertstate="firing"}[%ds]))`, int(time.Since(since).Seconds()))
	if err := c.get("/api/v1/query", url.Values{"query": {expr}}, &data); err != nil {
		t.Fatal(err)
	}
	for _, r := range data.Result {
		alerted = append(alerted, r.Metric["alertname"])
	}
	slices.Sort(alerted)
	return alerted
}
