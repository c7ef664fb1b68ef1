/** The plan of a stored version of a bundle: what changes if it becomes the live one, and the way back to it. */
import { useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import { useLive } from '../live/resource'
import { Button, Note, Skeleton } from '../parts/basic'
import { Head } from '../parts/Head'
import { href, query, setQuery, to } from '../shell/router'
import { t } from '../strings'
import { PlanShown } from './planParts'
import { mayDeploy, RollBack } from './rollBack'

const s = t.plan

export default function BundlePlan({ params }: { params: Record<string, string> }) {
  const name = params['bundle']!
  const [version, since] = ['version', 'since'].map((key) => Number(query.value.get(key)) || undefined)
  const asked = { ...(version ? { version_number: version } : {}), ...(since ? { since } : {}) }
  const live = useLive(`plan ${name} ${version} ${since}`, () => ok(api.GET('/api/v2/bundles/{bundle_name}/plan', { params: { path: { bundle_name: name }, query: asked } })), { every: 10_000, keep: true })
  const plan = live.data.value
  const [isAsked, setAsked] = useState(false)
  const isLive = plan?.version_number === plan?.live_version
  const choices = (value: number | null, set: (value: string) => void, label: string, without?: number) => (
    <label class="row small">{label}
      <select class="select" aria-label={label} value={value ?? ''} onChange={(event) => set(event.currentTarget.value)}>
        {plan!.versions.filter((one) => one.version_number !== without).map((one) => <option key={one.version_number} value={one.version_number}>{s.choice(one.version_number, one.version_number === plan!.live_version, one.state, one.message)}</option>)}
      </select>
    </label>
  )
  return (
    <>
      <Head title={plan ? s.title(plan.version_number) : s.plan} crumbs={[{ text: t.bundles.title, href: href('/bundles') }, { text: name, href: href(to('bundles', name)) }]}>
        {plan && !isLive && plan.problems.length === 0 && mayDeploy(name) && <Button onClick={() => setAsked(true)}>{t.bundles.backTitle(plan.version_number)}</Button>}
      </Head>
      {plan && isAsked && <RollBack bundle={name} version={plan.version_number} onClose={() => setAsked(false)} onDone={live.refresh} />}
      {live.error.value && <Note kind="bad">{live.error.value}</Note>}
      {!plan ? !live.error.value && <Skeleton rows={6} /> : (
        <section class="card" aria-label={s.title(plan.version_number)}>
          <header>
            <h2>{isLive ? s.changed(plan.version_number, plan.since ?? null) : s.changes(plan.version_number, plan.since ?? null, plan.live_version)}</h2>
            <span class="grow" />
            {choices(plan.version_number, (value) => setQuery({ version: value, since: null }), t.bundles.versionHead)}
            {plan.since && choices(plan.since, (value) => setQuery({ version: String(plan.version_number), since: value }), t.bundles.since, plan.version_number)}
          </header>
          <div style={{ padding: '10px 14px' }}><PlanShown plan={plan} /></div>
        </section>
      )}
    </>
  )
}
