/** A dialog that leads to a DAG or page by a part of its name. */
import { signal } from '@preact/signals'
import { useEffect, useState } from 'preact/hooks'
import { api, ok } from '../api/client'
import { Dialog } from '../parts/overlay'
import { Icon, type IconName } from '../parts/icons'
import { t } from '../strings'
import { PLACES } from './places'
import { go, to } from './router'

export const jumping = signal(false)

interface Target {
  text: string
  icon: IconName
  path: string
}

export function Jump() {
  return jumping.value ? <Open /> : null
}

function Open() {
  const [text, setText] = useState('')
  const [dags, setDags] = useState<string[]>([])
  const [at, setAt] = useState(0)
  useEffect(() => {
    const timer = setTimeout(() => {
      ok(api.GET('/api/v2/dags', { params: { query: { limit: 20, ...(text ? { dag_id_pattern: `%${text}%` } : {}) } } }))
        .then((page) => setDags(page.dags.map((dag) => dag.dag_id)))
        .catch(() => undefined)
    }, 80)
    return () => clearTimeout(timer)
  }, [text])
  const places = PLACES.flatMap((group) => group.links).filter((one) => one.text.toLowerCase().includes(text.toLowerCase()))
  const targets: Target[] = [
    ...dags.slice(0, 12).map((dag): Target => ({ text: dag, icon: 'dags', path: to('dags', dag) })),
    ...places.map((one): Target => ({ text: one.text, icon: one.icon, path: one.path })),
  ]
  const open = (target: Target | undefined) => {
    if (!target) return
    jumping.value = false
    go(target.path)
  }
  return (
    <Dialog title={t.jump.placeholder} onClose={() => (jumping.value = false)} onSubmit={() => open(targets[at])}>
      <input
        class="input"
        autofocus
        role="combobox"
        aria-expanded="true"
        aria-controls="jump-list"
        aria-label={t.jump.placeholder}
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value)
          setAt(0)
        }}
        onKeyDown={(event) => {
          const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0
          if (!step || !targets.length) return
          event.preventDefault()
          setAt((at + step + targets.length) % targets.length)
        }}
      />
      <ul id="jump-list" role="listbox" style={{ height: '320px', overflowY: 'auto' }} aria-label={t.jump.placeholder}>
        {targets.map((target, index) => (
          <li key={target.path} role="option" aria-selected={index === at}>
            <a class="side-link" aria-current={index === at ? 'true' : undefined} tabIndex={-1} onClick={() => open(target)}>
              <Icon name={target.icon} />
              <span class="clip">{target.text}</span>
            </a>
          </li>
        ))}
        {!targets.length && <li class="dim">{t.jump.none}</li>}
      </ul>
    </Dialog>
  )
}
