package snapshotfile

// The marks of a file of this format.
const (
	APIVersion = "holdfast.dev/v1alpha1"
	Kind       = "Snapshot"
)

// File is a Snapshot as it is written down.
type File struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Namespace string `json:"namespace,omitempty"` // of the Machines, for the commands in texts
	Mode      string `json:"mode"`                // full or guard
	Now       string `json:"now"`                 // when it was taken

	Desired    int    `json:"desired,omitempty"`
	DesiredWhy string `json:"desiredWhy,omitempty"`
	// OtherDriver shows that cluster-etcd-operator changes etcd's members as well.
	OtherDriver string `json:"otherDriver,omitempty"`
	Bootstrap   string `json:"bootstrap,omitempty"` // address

	Etcd     Etcd      `json:"etcd"`
	Machines []Machine `json:"machines,omitempty"`
	Nodes    []Node    `json:"nodes,omitempty"`
	// Claimants are Machines that claim the host of one of the control plane's.
	Claimants    []Machine `json:"claimants,omitempty"`
	ClaimantsWhy string    `json:"claimantsWhy,omitempty"`
	// MachineSets are their UIDs.
	MachineSets    []string `json:"machineSets,omitempty"`
	MachineSetsWhy string   `json:"machineSetsWhy,omitempty"`

	Records    []string `json:"records,omitempty"` // each as the annotation holdfast.dev/etcd-member
	RecordsWhy string   `json:"recordsWhy,omitempty"`

	RecordsVersion string  `json:"recordsVersion,omitempty"`
	Ledger         *Ledger `json:"releaseLedger,omitempty"` // without it there is none
	Guard          *Guard  `json:"quorumGuard,omitempty"`
	Lock           *Lock   `json:"membershipLock,omitempty"` // without it nobody has it
	// Failures are what Holdfast tries, and does not get done.
	Failures []Failure `json:"failures,omitempty"`
	Limits   *Limits   `json:"limits,omitempty"` // the default limits without it
}

// Lock is quorum.Lock.
type Lock struct {
	Key    string `json:"key"`
	Holder string `json:"holder,omitempty"`
	Leased bool   `json:"leased,omitempty"`
	Since  string `json:"since,omitempty"`
}

// Failure is quorum.Failure.
type Failure struct {
	Reason  string `json:"reason"`
	What    string `json:"what"`
	Machine string `json:"machine,omitempty"`
	Since   string `json:"since,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Etcd is quorum.Ring.
type Etcd struct {
	Known   bool     `json:"known"`
	Why     string   `json:"why,omitempty"`
	ReadAt  string   `json:"readAt,omitempty"`
	Leader  string   `json:"leader,omitempty"`
	Index   uint64   `json:"index,omitempty"`
	Version string   `json:"version,omitempty"`
	Alarms  []Alarm  `json:"alarms,omitempty"`
	Members []Member `json:"members,omitempty"`
}

// Alarm is quorum.Alarm.
type Alarm struct {
	Kind   string `json:"kind"`
	Member string `json:"member,omitempty"` // etcd cannot tell which without it
}

// Member is quorum.Member.
type Member struct {
	ID         string   `json:"id"`
	Name       string   `json:"name,omitempty"`
	PeerURLs   []string `json:"peerURLs,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
	Learner    bool     `json:"learner,omitempty"`
	Healthy    bool     `json:"healthy"`
	Since      string   `json:"since,omitempty"`
	Why        string   `json:"why,omitempty"`
	Leader     string   `json:"leader,omitempty"`
	Applied    uint64   `json:"applied,omitempty"`
	ProgressAt string   `json:"progressAt,omitempty"`
	CaughtUpAt string   `json:"caughtUpAt,omitempty"`
	CatchUp    string   `json:"catchUp,omitempty"`
}

// Machine is quorum.Machine. Hook and latch are ours, foreign or absent.
type Machine struct {
	Name       string            `json:"name"`
	UID        string            `json:"uid,omitempty"`
	Role       string            `json:"role,omitempty"`
	Type       string            `json:"type,omitempty"`
	Mirrored   bool              `json:"mirrored,omitempty"`
	Unread     string            `json:"unread,omitempty"` // why it cannot be read
	CreatedAt  string            `json:"createdAt,omitempty"`
	DeletedAt  string            `json:"deletedAt,omitempty"`
	Hook       string            `json:"hook"`
	Latch      string            `json:"latch"`
	Finalizer  bool              `json:"finalizer,omitempty"`
	Evidence   string            `json:"evidence,omitempty"` // the annotation holdfast.dev/etcd-member
	Override   string            `json:"override,omitempty"`
	OverrideBy string            `json:"overrideBy,omitempty"`
	Owners     []Owner           `json:"owners,omitempty"`
	ProviderID string            `json:"providerID,omitempty"`
	Instance   map[string]string `json:"instance,omitempty"` // by annotation, such as metal3.io/BareMetalHost
	Phase      string            `json:"phase,omitempty"`
	Node       string            `json:"node,omitempty"`
	InstanceID bool              `json:"instanceID,omitempty"`
	Addresses  []string          `json:"addresses,omitempty"`
	HostNames  []string          `json:"hostNames,omitempty"`
	Zone       string            `json:"zone,omitempty"`
}

// Owner is quorum.Owner.
type Owner struct {
	Group      string `json:"group,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Name       string `json:"name,omitempty"`
	UID        string `json:"uid,omitempty"`
	Controller bool   `json:"controller,omitempty"`
}

// Node is quorum.Node.
type Node struct {
	Name       string   `json:"name"`
	ProviderID string   `json:"providerID,omitempty"`
	Ready      bool     `json:"ready"`
	Cordoned   bool     `json:"cordoned,omitempty"`
	Addresses  []string `json:"addresses,omitempty"`
	HostNames  []string `json:"hostNames,omitempty"`
	Zone       string   `json:"zone,omitempty"`
	CreatedAt  string   `json:"createdAt,omitempty"`
	GaveWayAt  string   `json:"gaveWayAt,omitempty"`
}

// Ledger is quorum.Ledger.
type Ledger struct {
	Version   string    `json:"version,omitempty"`
	CreatedAt string    `json:"createdAt,omitempty"`
	Why       string    `json:"why,omitempty"`
	Releases  []Release `json:"releases,omitempty"`
}

// Release is quorum.Release.
type Release struct {
	Machine string   `json:"machine"`
	UID     string   `json:"uid"`
	Members []string `json:"members,omitempty"`
	At      string   `json:"at,omitempty"`
	By      string   `json:"by,omitempty"`
}

// Guard is a quorum.Guard that Holdfast manages.
type Guard struct {
	Absent       string     `json:"absent,omitempty"`
	Version      string     `json:"version,omitempty"`
	MinAvailable int        `json:"minAvailable"`
	Intact       bool       `json:"intact"`
	Pods         []GuardPod `json:"pods,omitempty"`
}

// GuardPod is quorum.GuardPod.
type GuardPod struct {
	Name     string `json:"name"`
	UID      string `json:"uid,omitempty"`
	Node     string `json:"node,omitempty"`
	Owner    string `json:"owner"` // guard, old or others
	Address  string `json:"address,omitempty"`
	Outdated bool   `json:"outdated,omitempty"`
	Ready    bool   `json:"ready"`
	Deleting bool   `json:"deleting,omitempty"`
}

// Limits is quorum.Limits.
type Limits struct {
	MaxDeleting  int    `json:"maxDeleting"`
	MaxLag       uint64 `json:"maxLag"`
	SteadyFor    string `json:"steadyFor"`
	StallAfter   string `json:"stallAfter"`
	DeadAfter    string `json:"deadAfter"`
	GoneAfter    string `json:"goneAfter"`
	SettledAfter string `json:"settledAfter"`
}
