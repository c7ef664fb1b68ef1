// The part of kube-router that enforces NetworkPolicies, by iptables and ipset, on one node.
//
// usage: firewall KUBECONFIG NODE SERVICE_CIDR
package main

import (
	"log"
	"os"
	"sync"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	access, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	must(err)
	client, err := kubernetes.NewForConfig(access)
	must(err)
	config := options.NewKubeRouterConfig()
	config.HostnameOverride, config.ClusterIPCIDRs, config.EnableIPv4 = os.Args[2], os.Args[3:4], true
	config.IPTablesSyncPeriod = time.Minute

	stop, health := make(chan struct{}), make(chan *healthcheck.ControllerHeartbeat, 10)
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	factory.Start(stop)
	factory.WaitForCacheSync(stop)

	tables, sets, err := netpol.NewIPTablesHandlers(config)
	must(err)
	var locked sync.Mutex
	controller, err := netpol.NewNetworkPolicyController(client, config, pods, policies, namespaces, &locked, tables, sets)
	must(err)
	handle(pods, controller.PodEventHandler)
	handle(namespaces, controller.NamespaceEventHandler)
	handle(policies, controller.NetworkPolicyEventHandler)
	go func() {
		for range health {
		}
	}()
	var ended sync.WaitGroup
	ended.Add(1)
	controller.Run(health, stop, &ended)
}

func handle(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	_, err := informer.AddEventHandler(handler)
	must(err)
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
