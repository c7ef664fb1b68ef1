/** A dialog that leads to a thing by a part of its name, and does what is done most: trigger, pause, clear what failed. */
import { signal } from '@preact/signals'
import { useEffect, useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import type { components } from '../api/schema'
import { runName } from '../format'
import { nudge } from '../live/changes'
import { forget } from '../live/resource'
import { attempt, Dialog, toast } from '../parts/overlay'
import { Icon, type IconName } from '../parts/icons'
import { label } from '../states'
import { t } from '../strings'
import { PLACES } from './places'
import { recents } from './recents'
import { go, path, to } from './router'
import { mayChange, mayVisit } from './session'

export const jumping = signal(false)

type Found = components['schemas']['Jump']
interface Target {
  key: string
  kind: string
  text: string
  icon: IconName
  act: () => void
}

export function Jump() {
  return jumping.value ? <Open /> : null
}

function Open() {
  const [text, setText] = useState('')
  const [found, setFound] = useState<Found | null>(null)
  const [at, setAt] = useState(0)
  useEffect(() => {
    let current = true
    const timer = setTimeout(() => {
      ok(api.GET('/api/v2/jump', { params: { query: { text } } })).then((page) => current && setFound(page), () => undefined)
    }, 80)
    return () => {
      current = false
      clearTimeout(timer)
    }
  }, [text])
  const shown = targets(text, found)
  const open = (target: Target | undefined) => {
    if (!target) return
    jumping.value = false
    target.act()
  }
  return (
    <Dialog title={t.jump.placeholder} onClose={() => (jumping.value = false)} onSubmit={() => open(shown[at])}>
      <input
        class="input"
        autofocus
        role="combobox"
        aria-expanded="true"
        aria-controls="jump-list"
        aria-activedescendant={shown[at] ? `jump-${at}` : undefined}
        aria-label={t.jump.placeholder}
        placeholder={t.jump.hint}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value)
          setAt(0)
        }}
        onKeyDown={(event) => {
          const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0
          if (!step || !shown.length) return
          event.preventDefault()
          const next = (at + step + shown.length) % shown.length
          setAt(next)
          document.getElementById(`jump-${next}`)?.scrollIntoView({ block: 'nearest' })
        }}
      />
      <ul id="jump-list" role="listbox" style={{ height: '360px', overflowY: 'auto' }} aria-label={t.jump.placeholder}>
        {shown.map((target, index) => (
          <li key={target.key} id={`jump-${index}`} role="option" aria-selected={index === at}>
            <a class="side-link" aria-current={index === at ? 'true' : undefined} tabIndex={-1} onClick={() => open(target)}>
              <Icon name={target.icon} />
              <span class="clip grow">{target.text}</span>
              <span class="small dim nowrap">{target.kind}</span>
            </a>
          </li>
        ))}
        {!shown.length && <li class="dim">{t.jump.none}</li>}
      </ul>
    </Dialog>
  )
}

/** Pages whose names begin with the text come first, then DAGs with what can be done to the nearest one. */
function targets(text: string, found: Found | null): Target[] {
  const wanted = text.trim().toLowerCase()
  const k = t.jump.kinds
  const page = (kind: string, name: string, icon: IconName, where: string): Target => ({ key: `${kind} ${where}`, kind, text: name, icon, act: () => go(where) })
  const places = PLACES.flatMap((group) => group.links).filter((one) => mayVisit(one) && one.text.toLowerCase().includes(wanted)).map((one) => page(k.page, one.text, one.icon, one.path))
  const starts = wanted ? places.filter((one) => one.text.toLowerCase().startsWith(wanted)) : []
  if (!wanted) return [...ofRun(), ...recents().map((one) => page(k.recent, one.text.split(' / ').map(runName).join(' / '), 'clock', one.path)), ...places, ...(found?.dags ?? []).map((dag) => page(k.dag, dag.dag_id, 'dags', to('dags', dag.dag_id)))]
  const nearest = found?.dags[0]
  return [
    ...starts,
    ...(found?.dags ?? []).map((dag) => page(k.dag, dag.dag_id, 'dags', to('dags', dag.dag_id))),
    ...(nearest?.may_operate ? ofDag(nearest) : []),
    ...places.filter((one) => !starts.includes(one)),
    ...(found?.tasks ?? []).map((one) => page(k.task, `${one.dag_id} / ${one.task_id}`, 'runs', to('dags', one.dag_id, 'runs', one.dag_run_id, 'tasks', one.task_id))),
    ...(found?.runs ?? []).map((one) => page(`${k.run}, ${label(one.state)}`, `${one.dag_id} / ${one.dag_run_id}`, 'runs', to('dags', one.dag_id, 'runs', one.dag_run_id))),
    ...(found?.assets ?? []).map((one) => page(k.asset, one.uri, 'assets', to('asset', one.id))),
    ...(found?.connections ?? []).map((one) => page(k.connection, one, 'connections', `/connections?q=${encodeURIComponent(one)}`)),
    ...(found?.variables ?? []).map((one) => page(k.variable, one, 'variables', `/variables?q=${encodeURIComponent(one)}`)),
    ...(found?.settings ?? []).map((one) => page(k.setting, one, 'settings', `/settings?q=${encodeURIComponent(one)}`)),
  ]
}

function ofDag(dag: Found['dags'][number]): Target[] {
  const of = { params: { path: { dag_id: dag.dag_id } } }
  const pause = () =>
    void attempt(async () => {
      await ok(api.PATCH('/api/v2/dags/{dag_id}', { ...of, body: { is_paused: !dag.is_paused } }))
      toast((dag.is_paused ? t.dags.unpausedMany : t.dags.pausedMany)(1))
      forget(`dag ${dag.dag_id}`)
      nudge('runs', `dag:${dag.dag_id}`)
    })
  return [
    { key: 'trigger', kind: t.jump.kinds.action, text: t.trigger.title(dag.dag_id), icon: 'play', act: () => go(`${to('dags', dag.dag_id)}?do=trigger`) },
    { key: 'backfill', kind: t.jump.kinds.action, text: t.jump.backfill(dag.dag_id), icon: 'backfills', act: () => go(`/backfills?new=${encodeURIComponent(dag.dag_id)}`) },
    { key: 'audit', kind: t.jump.kinds.action, text: t.jump.audit(dag.dag_id), icon: 'audit', act: () => go(`/audit?dag=${encodeURIComponent(dag.dag_id)}`) },
    { key: 'pause', kind: t.jump.kinds.action, text: dag.is_paused ? t.jump.unpause(dag.dag_id) : t.jump.pause(dag.dag_id), icon: dag.is_paused ? 'play' : 'pause', act: pause },
  ]
}

/** What can be done to the run of the page. */
function ofRun(): Target[] {
  const [run, dagId] = /^\/dags\/([^/]+)\/runs\/[^/]+/.exec(path.value) ?? []
  if (!run || !mayChange(decodeURIComponent(dagId!))) return []
  return [{ key: 'clear', kind: t.jump.kinds.action, text: t.jump.clearFailed, icon: 'clear', act: () => go(`${run}?do=clear-failed`) }]
}
